"""Short children's stories, written from plots in the grammar of `grammar.py`.

Start reading at `PLOTS`: a plot is a theme, a moral and three or four paragraphs. `Story` casts one plot with names,
animals and things, so that its facts are known and questions about it can be answered exactly.
"""

from dataclasses import dataclass

from . import lexicon
from .grammar import expand

OPENING = (
    "[Once upon a time, {an_animal} [named|called] {name} lived near the {place}."
    "|Once upon a time, there was {an_adj} {animal} [named|called] {name}, who lived [by|near] the {place}."
    "|There was once {an_adj} {animal} called {name}, who lived [by|near] the {place}."
    "|{name} was {an_adj} {animal} who lived in a small house [close to|near|not far from] the {place}."
    "|Long ago, near the {place}, there lived {an_adj} {animal} named {name}.]"
)
TREASURE = (
    "[{name} had {a_color} {object}, and {she} loved it more than anything."
    "|Of all {her} things, {name} liked {her} {color} {object} best."
    "|Every day {name} played with {her} {color} {object}."
    "|{name} took {her} {color} {object} everywhere.]"
)
FRIEND = "{an_adj2} {animal2} [named|called] {name2}"

PLOTS = {
    "lost": ("friendship", "A friend who helps you is worth more than gold.", [
        OPENING + " " + TREASURE,
        "{weather} when {name} walked to the {place2}. [A strong wind took the {object} and carried it far away.|{She} looked in {her} bag, but the {object} was gone.|{She} slipped on a stone, and the {object} rolled out of sight.] [{name} sat down and began to cry.|\"Oh no! My {object}!\" said {name}.|{name} looked under every leaf, but could not find it.]",
        "Then " + FRIEND + " came by. \"Why are you sad, {name}?\" asked {name2}. \"I lost my {color} {object},\" said {name}. [\"Do not worry. I will help you look,\" said {name2}.|\"Let us look for it together,\" said {name2}.]",
        "[They walked back along the path and looked behind every stone.|They asked the birds, and the birds told them to look near the {place}.] At last {name2} saw something {color} in the grass. It was the {object}! {name} was so happy that {she} gave {name2} some {food}, and they became good friends.",
    ]),
    "sharing": ("sharing", "It is better to share than to keep everything for yourself.", [
        OPENING + " {name} [loved|liked] {food} more than anything [else|in the world].",
        "{weather} when {name} set out for the {place2} with a basket full of {food}. On the way {she} met " + FRIEND + ", who had nothing to eat.",
        "\"Please, may I have some {food}?\" asked {name2}. \"No,\" said {name}. \"It is all mine.\" {name} sat down alone and began to eat. But the {food} did not taste good, because {she} was alone.",
        "So {name} went back and gave half of the {food} to {name2}. They sat by the {place2} and ate together. [\"This is the best day of all,\" said {name}.|\"Food tastes better with a friend,\" said {name}.]",
    ]),
    "truth": ("honesty", "Telling the truth is hard, but it makes the heart light.", [
        OPENING + " " + TREASURE,
        "{weather} when {name} played near the house of {name2} the {animal2}. {She} threw the {object} too high, and it broke a window. \"Who did this?\" asked {name2}.",
        "\"It was not me,\" said {name}. But {she} felt bad all day and could not eat {her} {food}. In the evening {name} went back to {name2}. \"I broke your window. I am sorry,\" {she} said.",
        "[\"Thank you for telling me the truth,\" said {name2}.|{name2} smiled. \"I am glad that you told me,\" said {name2}.] The next day they mended the window together, and {name2} gave {name} some {food}.",
    ]),
    "patience": ("patience", "Slow and patient work gets the job done.", [
        OPENING + " {name} wanted to build a [house|tower|bridge] of stone, and {she} wanted it to be done at once.",
        "{weather} when {name} began. {She} worked so fast that the first wall fell down. {An_adj2} {animal2} named {name2} was watching. \"One stone at a time, {name},\" said {name2}.",
        "{name} was [angry|cross] at first. But then {she} began again, and this time {she} worked slowly. {She} put one stone on another, day after day.",
        "After seven days the work was done, and it stood strong in the wind. {name2} brought {food}, and they ate it together in the sun.",
    ]),
    "dark_path": ("courage", "Being brave does not mean having no fear. It means trying anyway.", [
        OPENING + " {name} was afraid of the dark.",
        "One evening {her} friend {name2} the {animal2} was ill and needed medicine from the {place2}. [The sun had gone down|The night was black], and the path was long. \"I am afraid,\" said {name}, \"but {name2} needs me.\"",
        "{name} took {a_color} lantern and began to walk. [Something moved in the bushes, but it was only the wind.|A branch cracked, but it was only an old tree.] {She} sang a little song and went on, step by step.",
        "At last {name} came to the {place2}, got the medicine, and carried it home. {name2} drank it and felt better in the morning. \"You are the bravest {animal} I know,\" said {name2}.",
    ]),
    "storm": ("kindness", "A small kindness can make a big storm feel smaller.", [
        OPENING + " {Her} house was small, but it was warm and dry.",
        "One night a great storm came. The wind howled and the rain beat on the roof. [There was a knock at the door.|Then {name} heard someone at the door.] Outside stood " + FRIEND + ", wet and cold. \"Please, may I come in?\"",
        "\"My house is small,\" said {name}, \"but there is room for a friend.\" {She} made hot soup and gave {name2} {a_color} blanket. They told each other stories until the storm was over.",
        "In the morning the sun was shining. {name2} mended the roof, which the wind had broken. From that day on, they visited each other every week.",
    ]),
    "race": ("fairness", "A fair loser is better than a winner who cheats.", [
        OPENING + " {name} was the fastest runner in the land, or so {she} said.",
        "{weather} when all the animals met for the big race to the {place2}. {name} ran against " + FRIEND + ". \"One, two, three, go!\" called the old owl.",
        "{name} saw a short way through the {place}. If {she} took it, {she} would win. {She} stopped and thought about it. \"No,\" said {name}. \"That would not be fair.\" So {she} stayed on the long road.",
        "{name2} won the race, and {name} came second. But when the owl heard about the short way, {name} got a prize too: {a_color} {object}. Everyone cheered for both of them.",
    ]),
    "birthday": ("friendship", "The best present is a friend who remembers you.", [
        OPENING + " Today was {her} birthday, but nobody said a word about it.",
        "{name} went to see {name2} the {animal2}. \"I am very busy today,\" said {name2}, and closed the door. {name} felt sad. {She} walked alone to the {place2} and sat down.",
        "When the sun went down, {name} went home. The house was dark. {She} opened the door, and suddenly there was light everywhere. \"Happy birthday, {name}!\" shouted all {her} friends.",
        "{name2} had baked a big cake and gave {her_him} {a_color} {object}. \"So that is why you were busy!\" said {name}, and {she} laughed. They ate, danced and sang until midnight.",
    ]),
    "map": ("friendship", "The real treasure is the friend who walks beside you.", [
        OPENING + " One day {name} found an old map under a stone.",
        "\"Look!\" {she} said to {her} friend {name2} the {animal2}. \"There is a treasure hidden near the {place2}.\" They packed some {food} and {a_color} lantern and set out at once.",
        "They walked over a hill and across a river. {name2} fell into the water, and {name} pulled {him2} out. {name} was tired, and {name2} carried {her} bag. At last they found an old box under a tree.",
        "Inside the box there was only {a_color} {object} and a note. The note said: \"You did not come here alone.\" {name} looked at {name2} and smiled. They kept the {object} and went home, singing all the way.",
    ]),
    "seed": ("patience", "Good things grow slowly.", [
        OPENING + " One morning {name} found a [tiny|small] seed and planted it near the {place}.",
        "Every day {she} gave it water. But nothing happened. \"This seed is asleep,\" said {name}. " + "{An_adj2} {animal2} called {name2} came by. \"Give it time,\" said {name2}. \"You cannot hurry a seed.\"",
        "{name} waited. {weather} when a small green leaf came out of the ground. {name} jumped for joy. The leaf became a plant, and the plant became a tree.",
        "In the autumn the tree was full of [apples|pears|cherries|plums]. {name} gave the first one to {name2}. \"You were right,\" {she} said. \"It was only growing slowly.\"",
    ]),
    "fog": ("friendship", "A friend's voice can lead you home.", [
        OPENING + " {She} knew every path, or so {she} thought.",
        "One day {name} went to the {place2} to pick berries. Then a thick fog came, and {name} could not see {her} own feet. {She} turned left, and {she} turned right, but every tree looked the same.",
        "At home, {name2} the {animal2} began to worry. {name2} took {a_color} bell and rang it as loud as {she2} could. Ding, dong! Ding, dong! Far away, {name} heard the sound.",
        "Step by step {name} followed the bell, until {she} saw a light in the window. \"You found your way!\" said {name2}. \"No,\" said {name}, \"you found me.\" And they drank hot tea by the fire.",
    ]),
    "practice": ("patience", "If you keep trying, you will learn.", [
        OPENING + " {name} wanted to learn to [swim|skate|play the flute|dance|juggle], but it was very hard.",
        "On Monday {she} tried, and it went wrong. On Tuesday {she} tried again, and it went wrong again. \"I will never learn it,\" said {name}, and {she} [kicked a stone|sat down in the grass].",
        FRIEND.replace("{an_adj2}", "{An_adj2}") + " sat down beside {her_him}. \"I could not do it at first either,\" said {name2}. \"Try a little every day. I will stay with you.\"",
        "So {name} tried every day. {weather} when it suddenly worked. \"I can do it! I can do it!\" shouted {name}. {name2} clapped {his2} hands, and the whole {place2} heard them laugh.",
    ]),
    "noise": ("courage", "Many things are less scary in the light.", [
        OPENING + " One night {name} woke up, because there was a strange noise. Tap, tap, tap.",
        "\"Is it a ghost?\" thought {name}, and {she} hid under {her} {color} blanket. Tap, tap, tap. The noise did not stop. {name} took a deep breath and lit a candle.",
        "[Slowly|Very slowly] {she} opened the door. Outside stood " + FRIEND + ". \"I lost my way,\" said {name2}, \"and I saw your house. I tapped on the window because I was afraid.\"",
        "{name} began to laugh. \"I was afraid of you, and you were afraid of the night!\" {she} said. They ate some {food} together, and in the morning {name} showed {name2} the way to the {place2}.",
    ]),
    "neighbor": ("kindness", "A kind word opens every door.", [
        OPENING + " One day a new neighbor came to live next to {her_him}. It was " + FRIEND + ".",
        "{name2} did not speak to anyone. \"{name2} is not friendly,\" said the others. But {name} thought, \"Maybe {she2} is only shy.\"",
        "So {name} put some {food} into a basket, with {a_color} ribbon on it, and set it at the door of {name2}. The next day there was a note: \"Thank you. Would you like to come to tea?\"",
        "They drank tea and talked all afternoon. {name2} knew many songs and many stories. Soon everybody near the {place} wanted to be a friend of {name2}. And it all began with a basket of {food}.",
    ]),
    "river": ("courage", "You are stronger than you think.", [
        OPENING + " {name} liked to sit by the water and watch the boats.",
        "{weather} when {name} heard a cry. " + FRIEND.replace("{an_adj2}", "{An_adj2}") + " had fallen into the river! \"Help! Help!\" called {name2}. The water was fast and cold.",
        "{name} was small, but {she} was clever. {She} took a long rope, tied it to a tree, and threw the other end into the water. \"Hold on!\" {she} shouted. Then {name} pulled and pulled.",
        "At last {name2} was on dry land. \"You saved me,\" said {name2}. To say thank you, {name2} gave {name} {a_color} {object}. And every summer they learned to swim a little better.",
    ]),
    "soup": ("kindness", "When we care for each other, everyone gets well.", [
        OPENING + " {Her} best friend was {name2} the {animal2}.",
        "One day {name2} did not come to play. {name} went to look and found {name2} in bed. \"I feel ill,\" said {name2}. \"My head is hot.\"",
        "{name} ran home and made a big pot of soup. {She} put carrots in it, and a little salt, and a lot of love. Then {she} carried the pot all the way past the {place2}, and did not spill a drop.",
        "{name2} ate the soup and slept. After three days {she2} was well again. \"Your soup is the best medicine,\" said {name2}. And they went out to play with the {color} {object}.",
    ]),
    "proud": ("modesty", "It is better to be kind than to be the best.", [
        OPENING + " {name} thought that {she} was the [cleverest|strongest|most beautiful] {animal} in the whole land, and {she} said so every day.",
        "\"Look at my {color} {object},\" {name} said to {name2} the {animal2}. \"You do not have such a fine one.\" {name2} said nothing and went away. Soon nobody wanted to play with {name}.",
        "{weather} when {name} fell into a hole near the {place2}. \"Help!\" {she} called. {name2} heard it, and came with a rope. \"Why do you help me?\" asked {name}. \"Because you need help,\" said {name2}.",
        "{name} was ashamed. \"I am sorry that I was so proud,\" {she} said, and {she} gave {name2} the {color} {object}. From that day on, {name} said kind things about others, and {she} was never alone.",
    ]),
    "moon": ("contentment", "You do not need to own a thing to love it.", [
        OPENING + " Every night {name} looked up at the moon. \"I want to have it,\" {she} said.",
        "{She} climbed on the roof, but the moon was too high. {She} climbed the tallest tree by the {place2}, but the moon was still too high. " + FRIEND.replace("{an_adj2}", "{An_adj2}") + " asked, \"What are you doing up there?\"",
        "\"I want to take the moon home,\" said {name}. {name2} laughed and took {her_him} to the lake. There was the moon, round and bright, in the still water. \"If you take it away,\" said {name2}, \"nobody else can see it.\"",
        "{name} thought for a long time. \"Then let it stay,\" {she} said. They sat by the water, ate some {food}, and looked at the moon together.",
    ]),
    "repair": ("patience", "What is broken can be made whole again with time and care.", [
        OPENING + " " + TREASURE,
        "One day {name} dropped the {object}, and it broke into two pieces. {name} wanted to throw it away. \"Wait,\" said {name2} the {animal2}, who [lived next door|was passing by]. \"We can mend it.\"",
        "They worked all afternoon with glue and string. The first time it fell apart. The second time it fell apart too. The third time it held.",
        "Now there was a thin line where the {object} had been broken. \"I like it even better now,\" said {name}, \"because that line is from you.\" And {name2} was very glad.",
    ]),
    "snow": ("friendship", "Together even cold days are warm.", [
        OPENING + " One morning {name} looked out of the window. Everything was white. It had snowed!",
        "{name} put on {her} {color} scarf and ran outside. {She} met " + FRIEND + ". \"Let us build a snowman!\" said {name}. They rolled one big ball, one middle ball and one small ball.",
        "They gave the snowman two stones for eyes, a carrot for a nose and {a_color2} hat. Then they threw snowballs near the {place2} until their hands were cold.",
        "In the evening they drank hot milk and ate {food} by the fire. \"I hope it snows again tomorrow,\" said {name}. And outside, very softly, it began to snow.",
    ]),
    "music": ("sharing", "Music is sweeter when others can hear it.", [
        OPENING + " {name} found an old [flute|violin|drum] near the {place}, and {she} played it every night, all alone.",
        "{weather} when {name2} the {animal2} heard the music. {name2} came closer and closer. {name} saw {him2} and stopped at once. \"Please go on,\" said {name2}. \"It is so beautiful.\"",
        "{name} had never played for anyone. Her heart beat fast. But {she} closed {her} eyes and played, and {name2} began to sing.".replace("Her heart", "{Her} heart"),
        "The next night there were three who listened, and then ten, and then all who lived near the {place2}. They brought {food} and danced under the stars, and {name} was not shy any more.",
    ]),
    "letter": ("kindness", "A few kind words can travel very far.", [
        OPENING + " Nobody ever wrote a letter to {her_him}.",
        "One day {name} had an idea. {She} sat down with a pencil and wrote: \"Dear friend, I hope that you are well. Your {name}.\" Then {she} put the letter into a bottle and threw it into the water by the {place2}.",
        "Far away, " + FRIEND + " found the bottle. {name2} read the letter three times, because {she2} was lonely too. Then {name2} packed some {food} and went to look for {name}.",
        "{weather} when there was a knock at the door. \"I am {name2},\" said the {animal2}. \"I got your letter.\" {name} was so happy that {she} gave {name2} {a_color} {object}. They wrote to each other all their lives.",
    ]),
}
CROWN = {("princess", "he"): "prince", ("prince", "she"): "princess", ("queen", "he"): "king", ("king", "she"): "queen"}
THEMES = sorted({theme for theme, _, _ in PLOTS.values()})


@dataclass
class Story:
    """One cast and written story; `fields` are the facts that it states."""

    plot: str
    theme: str
    moral: str
    paragraphs: list
    fields: dict

    @property
    def text(self):
        return "\n\n".join([*self.paragraphs, self.moral])

    def states(self, field):
        """Whether the text names this fact, so that a question about it has an answer."""
        return any(self.fields[field] in paragraph for paragraph in self.paragraphs)


def cast(random, names=lexicon.NAMES):
    """Random names, animals, things and places, with the pronouns that go with them."""
    # The friend comes from the other half of the names: two uniform choices would be equal in greedy output.
    hero = random.randrange(len(names))
    name, name2 = names[hero], random.choice(names[1 - hero % 2 :: 2])
    animal, animal2 = random.sample(lexicon.ANIMALS, 2)
    adj, adj2 = random.sample(lexicon.ADJECTIVES, 2)
    place, place2 = random.sample(lexicon.PLACES, 2)
    color, color2 = random.sample(lexicon.COLORS, 2)
    she, she2 = ("she" if who in lexicon.GIRLS else "he" for who in (name, name2))
    animal, animal2 = (CROWN.get((who, pronoun), who) for who, pronoun in ((animal, she), (animal2, she2)))
    her = "her" if she == "she" else "his"
    return dict(
        name=name, name2=name2, animal=animal, animal2=animal2, place=place, place2=place2, color=color,
        object=random.choice(lexicon.OBJECTS), food=random.choice(lexicon.FOODS), weather=random.choice(lexicon.WEATHERS),
        an_animal=lexicon.with_article(f"{adj} {animal}") if random.random() < 0.5 else lexicon.with_article(animal),
        an_adj=lexicon.with_article(adj), an_adj2=lexicon.with_article(adj2), An_adj2=lexicon.with_article(adj2).capitalize(),
        a_color=lexicon.with_article(color), a_color2=lexicon.with_article(color2),
        she=she, She=she.capitalize(), her=her, Her=her.capitalize(), her_him="her" if she == "she" else "him",
        she2=she2, him2="her" if she2 == "she" else "him", his2="her" if she2 == "she" else "his",
    )


def write_story(random, names=lexicon.NAMES, theme=None):
    """One story; with `theme`, only plots of that theme."""
    plots = [plot for plot, (its_theme, _, _) in PLOTS.items() if theme in (None, its_theme)]
    plot = random.choice(plots)
    theme, moral, paragraphs = PLOTS[plot]
    fields = cast(random, names)
    return Story(plot, theme, moral, [expand(paragraph, random, fields) for paragraph in paragraphs], fields)
