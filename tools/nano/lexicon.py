"""The words that the generated corpus draws on, with the parts held out for evaluation.

Start reading at `split`: every list that ends in a pair (train, held_out) is used in training only by its
first half, so that the evaluation can ask for copying and reasoning over words never seen in that role.
"""

NAMES = (
    "Milo Anna Ben Lily Tom Maya Sam Nora Leo Ruby Max Ella Finn Ivy Jack Zoe Oscar Mia Theo Rosa Hugo Clara Felix "
    "Alice Noah Emma Otto Lucy Ravi Sara Omar Lena Kofi Aiko Diego Priya Ada Arlo Bella Carlo Dora Elias Freya Gus "
    "Hana Igor Jonas Kira Lars Mila Nico Olive Pablo Quinn Rafi Sofia Tariq Uma Vera Willa Yara Zane Amir Bruno "
    "Cleo Dina Emil Flora Greta Henry Iris Joel Katie Luna Marco Nadia Opal Peter Rita Stella Toby Violet Wendy"
).split()
GIRLS = set(
    "Anna Lily Maya Nora Ruby Ella Ivy Zoe Mia Rosa Clara Alice Emma Lucy Sara Lena Aiko Priya Ada Bella Dora Freya "
    "Hana Kira Mila Olive Sofia Uma Vera Willa Yara Cleo Dina Flora Greta Iris Katie Luna Nadia Opal Rita Stella Violet "
    "Wendy Celia Edith Gwen Imani Leila Nell Orla Selma".split()
)
HELD_OUT_NAMES = "Basil Celia Dario Edith Fergus Gwen Horace Imani Jasper Kenji Leila Magnus Nell Orla Percy Selma".split()

ANIMALS = (
    "fox rabbit bear mouse owl cat dog frog duck squirrel hedgehog turtle pony goat badger sparrow wolf deer otter "
    "beaver lion tiger elephant monkey penguin panda crow robin swan goose hen pig cow sheep lamb horse donkey "
    "mole bat snail bee ant butterfly dragon robot giant wizard knight princess prince pirate fairy whale dolphin seal crab dinosaur unicorn kitten puppy ghost king queen squid parrot camel"
).split()
ADJECTIVES = (
    "little old brave shy clever kind sleepy curious tiny gentle cheerful quiet lazy proud hungry young friendly "
    "careful merry busy honest patient lonely playful"
).split()
COLORS = "red blue green yellow silver golden purple white black orange brown pink gray".split()
OBJECTS = (
    "kite ball boat lantern book bell basket hat drum key map scarf cup clock flute blanket spoon box coat mirror "
    "ribbon whistle umbrella bag button candle ring shell wagon violin pencil letter"
).split()
PLACES = (
    "forest|garden|village|river|hill|meadow|lake|barn|market|beach|mountain|old mill|library|castle|bridge|orchard|"
    "valley|harbor|pond|well|lighthouse|bakery|school|tower"
).split("|")
FOODS = "bread apples soup honey berries cheese cake nuts porridge pears cherries pancakes cookies carrots plums corn".split()
WEATHERS = (
    "It was a sunny morning|It was a cold, windy day|Rain was falling softly|Snow covered the ground|"
    "The moon was bright that night|It was a warm summer afternoon|The sky was gray and quiet|"
    "It was the first day of spring|The leaves were turning gold|A soft mist lay over the land"
).split("|")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()
JOBS = "baker farmer teacher doctor sailor painter gardener tailor miller cook carpenter pilot singer writer nurse".split()

CITIES = (
    "Paris London Berlin Madrid Rome Vienna Lisbon Dublin Athens Oslo Tokyo Cairo Delhi Sydney Toronto Chicago "
    "Boston Seattle Denver Dallas Mumbai Nairobi Lagos Lima Bogota Havana Prague Warsaw Budapest Helsinki Stockholm "
    "Brussels Geneva Munich Milan Naples Porto Seville Lyon Osaka Kyoto Seoul Beijing Hanoi Bangkok Jakarta Manila "
    "Karachi Tehran Baghdad Ankara Istanbul Moscow Kyiv Tunis Rabat Accra Dakar Quito Santiago Houston Atlanta Miami"
).split()
HELD_OUT_CITIES = "Zurich Bergen Turin Valencia Kobe Calgary Phoenix Durban Cusco Bilbao Ghent Bremen Austin Leeds".split()

SYLLABLES = "ba be bo ca da de do fa fi go ha ka ki la le lo ma mi mo na ne no pa pe pi ra re ri ro sa se so ta te ti to va ve vo za zo".split()


def invented_word(random, syllables=3):
    """A pronounceable word that no list holds, e.g. `takiro`; the model can only copy it."""
    return "".join(random.choice(SYLLABLES) for _ in range(syllables))


def with_article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun
