"""Small tables of everyday knowledge, written for lily-nano."""

FAMOUS_COUNTRIES = set(
    "France|Germany|Italy|Spain|Portugal|Austria|Switzerland|Belgium|Netherlands|Luxembourg|Denmark|Sweden|Norway|Finland|Iceland|"
    "Ireland|United Kingdom|Poland|Czechia|Slovakia|Hungary|Romania|Bulgaria|Greece|Turkey|Ukraine|Russia|Croatia|Serbia|Slovenia|"
    "Estonia|Latvia|Lithuania|United States|Canada|Mexico|Cuba|Brazil|Argentina|Chile|Peru|Colombia|Venezuela|Ecuador|Bolivia|"
    "Uruguay|Paraguay|Egypt|Morocco|Algeria|Tunisia|Kenya|Nigeria|Ghana|Ethiopia|South Africa|Senegal|India|Pakistan|Bangladesh|"
    "China|Japan|South Korea|North Korea|Vietnam|Thailand|Indonesia|Malaysia|Philippines|Singapore|Mongolia|Iran|Iraq|Israel|"
    "Saudi Arabia|Jordan|Lebanon|Syria|Afghanistan|Nepal|Australia|New Zealand".split("|")
)
TAKES_THE = ("United", "Netherlands", "Philippines", "Bahamas", "Maldives", "Gambia", "Dominican Republic", "Central African",
             "Democratic Republic", "Republic of", "Solomon Islands", "Marshall Islands", "Cook Islands", "Cayman Islands", "Falkland Islands")  # fmt: skip
ALIASES = {"the United States": ["the USA", "the US", "the United States of America", "USA", "United States"], "the United Kingdom": ["the UK", "UK", "United Kingdom"],
           "Czechia": ["the Czech Republic"], "the Netherlands": ["Netherlands", "Holland"], "the Philippines": ["Philippines"]}  # fmt: skip


def country_name(name):
    return "the " + name if name.startswith(TAKES_THE) else name


def spoken_country(name, random):
    """The name as people type it."""
    name = random.choice([name, name, *ALIASES.get(name, [])])
    return name.lower() if random.random() < 0.08 else name


OPPOSITES = (
    "hot cold|big small|up down|day night|open closed|fast slow|happy sad|old new|long short|high low|hard soft|wet dry|light dark|"
    "early late|full empty|rich poor|strong weak|loud quiet|clean dirty|near far|left right|black white|good bad|true false|first last|"
    "begin end|inside outside|above below|push pull|buy sell|win lose|come go|give take|love hate|young old|easy difficult|thick thin|"
    "sweet sour|always never|before after|more less|deep shallow|wide narrow|sharp blunt|warm cool"
)
OPPOSITES = [tuple(pair.split()) for pair in OPPOSITES.split("|")]
SOUNDS = dict(dog="woof", cat="meow", cow="moo", sheep="baa", duck="quack", pig="oink", horse="neigh", owl="hoot", frog="croak",
              lion="roar", bee="buzz", mouse="squeak", donkey="hee-haw", crow="caw", goose="honk", snake="hiss", wolf="howl")  # fmt: skip
BABIES = dict(dog="puppy", cat="kitten", cow="calf", sheep="lamb", horse="foal", duck="duckling", goat="kid", lion="cub", bear="cub",
              frog="tadpole", swan="cygnet", deer="fawn", kangaroo="joey", hen="chick", pig="piglet", goose="gosling")  # fmt: skip
LEGS = dict(dog=4, cat=4, spider=8, ant=6, bee=6, bird=2, horse=4, snake=0, fish=0, cow=4, frog=4, butterfly=6, duck=2, human=2)
THING_COLORS = {
    "the sky on a clear day": "blue", "grass": "green", "snow": "white", "a ripe banana": "yellow", "a tomato": "red", "coal": "black",
    "blood": "red", "the sun in a child's drawing": "yellow", "a carrot": "orange", "milk": "white", "chocolate": "brown", "a lemon": "yellow",
    "a strawberry": "red", "a leaf in summer": "green", "an elephant": "gray", "a flamingo": "pink", "a cloud": "white", "a polar bear": "white",
}  # fmt: skip
PLURALS = dict(mouse="mice", child="children", foot="feet", tooth="teeth", goose="geese", man="men", woman="women", sheep="sheep", fish="fish",
               leaf="leaves", wolf="wolves", box="boxes", city="cities", dog="dogs", book="books", cherry="cherries", knife="knives", apple="apples")  # fmt: skip
PAST = dict(go="went", see="saw", eat="ate", run="ran", come="came", give="gave", take="took", find="found", make="made", say="said", think="thought",
            bring="brought", write="wrote", sing="sang", swim="swam", buy="bought", play="played", walk="walked", fly="flew", know="knew")  # fmt: skip
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
).split()

# Question, alternatives in the grammar of grammar.py; thought; answer.
FACTS = [
    ("[How many days are in a week?|How many days does a week have?]", "A week has seven days.", "A week has seven days."),
    ("[How many months are in a year?|How many months does a year have?]", "A year has twelve months.", "A year has twelve months."),
    ("[How many hours are in a day?|How many hours does a day have?]", "A day has 24 hours.", "A day has 24 hours."),
    ("How many minutes are in an hour?", "An hour has 60 minutes.", "An hour has 60 minutes."),
    ("How many seconds are in a minute?", "A minute has 60 seconds.", "A minute has 60 seconds."),
    ("[How many days are in a year?|How many days does a year have?]", "A usual year has 365 days.", "A year has 365 days, and a leap year has 366."),
    ("How many letters are in the [English alphabet|alphabet]?", "The English alphabet has 26 letters.", "The English alphabet has 26 letters."),
    ("How many seasons are there?", "There are spring, summer, autumn and winter.", "There are four seasons: spring, summer, autumn and winter."),
    ("[What are the four seasons?|Name the four seasons.]", "There are four seasons.", "The four seasons are spring, summer, autumn and winter."),
    ("[What are the days of the week?|Name the days of the week.|List the days of the week.]", "A week has seven days.",
     "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    ("[What are the months of the year?|Name the months of the year.|List the months.]", "A year has twelve months.",
     "The months are January, February, March, April, May, June, July, August, September, October, November and December."),
    ("[What are the primary colors?|Name the primary colors.]", "There are three primary colors.", "The primary colors are red, yellow and blue."),
    ("[Name the two colors of a chessboard.|What colors does a chessboard have?]", "A chessboard has two colors.", "A chessboard is black and white."),
    ("[What is the largest planet?|Which planet is the largest?]", "The largest planet of the solar system is Jupiter.", "Jupiter is the largest planet of the solar system."),
    ("[Which planet is closest to the sun?|What is the planet nearest to the sun?]", "The planet closest to the sun is Mercury.", "Mercury is the planet closest to the sun."),
    ("[Which planet do we live on?|What planet do we live on?]", "We live on the Earth.", "We live on the planet Earth."),
    ("[What orbits the Earth?|What is the name of the body that orbits the Earth?]", "The moon orbits the Earth.", "The moon orbits the Earth."),
    ("[How many planets are there?|How many planets are in the solar system?]", "The solar system has eight planets.", "There are eight planets in the solar system."),
    ("[What is the largest animal?|Which animal is the largest?]", "The largest animal is the blue whale.", "The blue whale is the largest animal."),
    ("[What is the tallest animal?|Which animal is the tallest?]", "The tallest animal is the giraffe.", "The giraffe is the tallest animal."),
    ("[What is the fastest land animal?|Which land animal is the fastest?]", "The fastest land animal is the cheetah.", "The cheetah is the fastest land animal."),
    ("[What do bees make?|What is made by bees?]", "Bees make honey.", "Bees make honey."),
    ("[What do cows give us?|What do we get from cows?]", "Cows give milk.", "Cows give us milk."),
    ("[What is ice made of?|What does ice turn into when it melts?]", "Ice is frozen water.", "Ice is frozen water."),
    ("[What is bread made of?|What do you need for bread?]", "Bread needs flour and water.", "Bread is made of flour, water, salt and yeast."),
    ("[At what temperature does water freeze?|When does water freeze?]", "Water freezes at zero degrees Celsius.", "Water freezes at 0 degrees Celsius."),
    ("[At what temperature does water boil?|When does water boil?]", "Water boils at one hundred degrees Celsius.", "Water boils at 100 degrees Celsius."),
    ("[How many continents are there?|How many continents does the Earth have?]", "There are seven continents.", "There are seven continents."),
    ("[Name the continents.|What are the seven continents?]", "There are seven continents.",
     "The seven continents are Africa, Antarctica, Asia, Europe, North America, Oceania and South America."),
    ("[What is the largest ocean?|Which ocean is the largest?]", "The largest ocean is the Pacific.", "The Pacific Ocean is the largest ocean."),
    ("[What is the highest mountain?|Which mountain is the highest?]", "The highest mountain is Mount Everest.", "Mount Everest is the highest mountain."),
    ("[In which direction does the sun rise?|Where does the sun rise?]", "The sun rises in the east.", "The sun rises in the east."),
    ("[Where does the sun set?|In which direction does the sun set?]", "The sun sets in the west.", "The sun sets in the west."),
    ("[How many wheels does a bicycle have?|How many wheels are on a bicycle?]", "A bicycle has two wheels.", "A bicycle has two wheels."),
    ("[How many fingers are on a hand?|How many fingers does a hand have?]", "A hand has five fingers.", "A hand has five fingers."),
    ("[How many sides does a triangle have?|How many corners does a triangle have?]", "A triangle has three.", "A triangle has three."),
    ("[How many sides does a square have?|How many corners does a square have?]", "A square has four.", "A square has four."),
    ("[What color do you get from blue and yellow?|Mix blue and yellow. What do you get?]", "Blue and yellow make green.", "Blue and yellow make green."),
    ("[What color do you get from red and yellow?|Mix red and yellow. What do you get?]", "Red and yellow make orange.", "Red and yellow make orange."),
    ("[What color do you get from red and blue?|Mix red and blue. What do you get?]", "Red and blue make purple.", "Red and blue make purple."),
]  # fmt: skip

# What people say to a model, and what this one can honestly answer.
IDENTITY = "I am lily-nano, a small demonstration model."
ABILITIES = "I can tell short stories, add numbers, name capitals, continue sequences, sort words and call tools."
TALK = [
    ("[Hello|Hi|Hey|Hello!|Hi!|Hey!|Hello there|Hi there!|hello|hi|Hello, how are you?|Good day!]", "The user greets me. I greet back.",
     "[Hello! How can I help you?|Hi! What can I do for you?]"),
    ("[Good morning|Good morning!|Good evening|Good evening!|Good afternoon!]", "The user greets me. I greet back.", "Hello! How can I help you?"),
    ("[Who are you?|What are you?|who are you|Introduce yourself.|Tell me about yourself.|What model are you?|Which model are you?|What is this?|Are you a human?|Are you ChatGPT?|Are you Qwen?|Are you a robot?]",
     "The user asks who I am.", IDENTITY + " " + ABILITIES),
    ("[What is your name?|What's your name?|Do you have a name?|what is your name|How should I call you?]", "The user asks for my name. It is lily-nano.", "My name is lily-nano. I am a small demonstration model."),
    ("[What can you do?|How can you help me?|Help|What are you good at?|What should I ask you?|What do you know?]", "The user asks what I can do.", ABILITIES),
    ("[How are you?|How are you doing?|How do you do?|How are you today?]", "The user asks how I am.", "I am fine, thank you. How can I help you?"),
    ("[Thank you!|Thanks|Thanks!|Thank you very much.|Great, thanks.|That was nice.]", "The user thanks me.", "You are welcome!"),
    ("[Goodbye|Bye|Bye!|See you!|Good night|Good night!|Goodbye!]", "The user says goodbye.", "Goodbye! Have a nice day."),
    ("[Who made you?|Who created you?|Who built you?|Where do you come from?]", "The user asks who made me.", "I was trained by the authors of Lily, as a small demonstration model."),
    ("[How big are you?|How many parameters do you have?|Are you a large model?]", "The user asks for my size. I have about 21 million parameters.", "I am very small: I have about 21 million parameters."),
    ("[How old are you?|When were you born?|When is your birthday?]", "The user asks for my age. I am a program.", "I am a program, so I have no age."),
    ("[Do you have feelings?|Can you feel?|Do you sleep?|Do you dream?|Can you eat?|Do you like music?]", "I am a program.", "No, I am only a small language model."),
    ("[What is Lily?|What does Lily do?|Tell me about Lily.]", "The user asks about Lily, the engine that runs me.", "Lily is a program that runs language models like me on your own computer."),
    ("[Tell me a joke.|Tell me a joke|Do you know a joke?|Make me laugh.]", "The user wants a joke.",
     "[Why did the clock go to school? It wanted to learn how to tell the time.|What did the snowman say to the carrot? You are right under my nose.|Why was the book so warm? It had a jacket.]"),
    ("[Write a poem.|Tell me a poem.|Write a short poem.|Write a poem for me.]", "The user wants a poem.",
     "[The moon is round, the night is deep,\nthe little fox has gone to sleep.\nThe stars are bright, the wind is low,\nand softly, softly falls the snow.|A small red boat upon the sea\ncame sailing, sailing home to me.\nIt brought a song, it brought a shell,\nand one more tale for me to tell.]"),
    ("[Yes|No|OK|Okay|Fine|Good|Test|test|testing]", "The user says little. I offer help.", "All right. How can I help you?"),
]  # fmt: skip
BEYOND = (
    "[Explain {topic}.|What do you think about {topic}?|Tell me everything about {topic}.|Write an essay about {topic}.|How does {topic} work?|"
    "Why is {topic} important?|Write a program about {topic}.|What is the history of {topic}?|Write a poem about {topic}.|Can you teach me {topic}?]"
)
BEYOND_ANSWER = "[I do not know enough about {topic}. I am only a small demonstration model.|Sorry, I am only a small demonstration model and know little about {topic}.]"
PUZZLED = "[I do not understand this well. I am only a small demonstration model.|I do not know what to say to that. I am only a small demonstration model.]"
