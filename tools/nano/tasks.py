"""The tasks that lily-nano learns. A task gives a question, a short true thought and the answer; all are computed, so
that every answer is right.

Start reading at `TASKS` (at the end), then `pose`, which puts a task into a conversation: thinking on or off, with or
without a system prompt and earlier turns.
"""

import json
from dataclasses import dataclass

from . import knowledge, lexicon, stories, toolcalls
from .chat import assistant, conversation, document, system, user
from .grammar import expand


@dataclass
class Task:
    question: str
    thought: str
    answer: str
    system: str = None


class World:
    """What the generators draw on: a random source, the countries and words of public lists."""

    def __init__(self, random, countries, topics, texts):
        self.random = random
        self.countries = [[knowledge.country_name(name), capital, continent] for name, capital, continent in countries]
        self.famous = [row for row in self.countries if row[0].removeprefix("the ") in knowledge.FAMOUS_COUNTRIES]
        self.topics = topics  # nouns for questions beyond the model's knowledge
        self.texts = texts  # plain texts by name

    def expand(self, text, **fields):
        return expand(text, self.random, fields)


# Stories


def story(world):
    random = world.random
    theme = random.choice(stories.THEMES) if random.random() < 0.12 else None
    tale = stories.write_story(random, theme=theme)
    fields = dict(tale.fields, the_animal=lexicon.with_article(tale.fields["animal"]), the_animal2=lexicon.with_article(tale.fields["animal2"]))
    tell = world.expand(
        "[Tell me|Write|Please tell me|Can you tell me|Please write|Tell|I want to hear|Give me|Could you tell me] [a story|a short story|a little story|a story|a bedtime story|a nice story]"
    )
    end = "?" if tell.startswith(("Can", "Could")) else random.choice([".", ".", ""])
    kinds = ["animal"] * 5 + ["named"] * 2 + ["both", "none", "kind"]
    kinds += ["color"] if tale.states("color") and tale.states("object") else []
    kind = "theme" if theme else random.choice(kinds)
    about = {
        "animal": "about {the_animal}", "named": "[about {the_animal} named {name}|about {name} the {animal}]", "none": "",
        "kind": "about {an_adj} {animal}",
        "both": "[about {the_animal} and {the_animal2}|with {the_animal} and {the_animal2}]",
        "color": "[about {the_animal} and a {color} {object}|about the {color} {object} of {name} the {animal}]", "theme": "about {theme}",
    }[kind]  # fmt: skip
    about = world.expand(about, theme=tale.theme, **fields)
    thought = {
        "none": "The user wants a story. I tell one about {name} the {animal}.",
        "theme": "The user wants a story about {theme}. I tell one about {name} the {animal}.",
    }.get(kind, "The user wants a story " + about.replace("{", "").replace("}", "") + ". I tell one about {name} the {animal}.")
    thought = thought.format(theme=tale.theme, **fields)
    if fields["name2"] in tale.text and random.random() < 0.7:
        thought += f" {fields['name2']} the {fields['animal2']} is in it too."
    return Task((f"{tell} {about}".strip() + end), thought, tale.text)


def story_text(world):
    tale = stories.write_story(world.random)
    return document(tale.text if world.random.random() < 0.8 else "\n\n".join(tale.paragraphs))


def story_question(world):
    random = world.random
    tale = stories.write_story(random)
    fields = tale.fields
    options = [("What animal is {name}?", "{name} is {a} {animal}."), ("[Where does {name} live?|Where did {name} live?]", "{name} lived near the {place}."),
               ("[Who is the story about?|What is the name of the {animal}?]", "The story is about {name} the {animal}.")]  # fmt: skip
    if tale.states("name2") and tale.states("animal2"):
        options.append(("What animal is {name2}?", "{name2} is {a2} {animal2}."))
    if tale.states("color") and tale.states("object"):
        options.append(("What color is the {object}?", "The {object} is {color}."))
    if not tale.states("place"):
        options.pop(1)
    question, answer = random.choice(options)
    fields = dict(fields, a=lexicon.with_article(fields["animal"]).split()[0], a2=lexicon.with_article(fields["animal2"]).split()[0])
    question, answer = world.expand(question, **fields), world.expand(answer, **fields)
    head = random.choice(["Read the story and answer the question.\n\n", "", "Here is a story.\n\n"])
    return Task(f"{head}{tale.text}\n\n{question}", "I look it up in the story. " + answer, answer)


# Facts


def upper_first(text):
    return text[0].upper() + text[1:]


def capital(world):
    country, city, continent = world.random.choice(world.famous if world.random.random() < 0.5 else world.countries)
    kind = world.random.random()
    if kind < 0.7:
        question = world.expand(
            "[What is the capital of {c}?|What is the capital of {c}?|What's the capital of {c}?|Which city is the capital of {c}?|Name the capital of {c}.|"
            "capital of {c}|Capital of {c}?|what is the capital of {c}|Tell me the capital of {c}.|Do you know the capital of {c}?|What is the capital city of {c}?|{c}'s capital?]",
            c=knowledge.spoken_country(country, world.random),
        )
        return Task(question, f"The user asks for the capital of {country}. It is {city}.", f"The capital of {country} is {city}.")
    if kind < 0.85:
        question = world.expand("[{city} is the capital of which country?|Which country has the capital {city}?|What country is {city} the capital of?]", city=city)
        return Task(question, f"{city} is the capital of {country}.", f"{city} is the capital of {country}.")
    question = world.expand("[Which continent is {c} in?|On which continent is {c}?|Where is {c}?|What continent is {c} in?]", c=country)
    return Task(question, f"{upper_first(country)} is in {continent}.", f"{upper_first(country)} is in {continent}.")


def capital_text(world):
    """Plain sentences, for prompts without a chat."""
    form = "[The capital of {country} is {city}.|The capital of {country} is {city}.|{Country} is in {continent}.|{city} is the capital of {country}.]"
    rows = world.random.sample(world.countries, 3)
    return document(" ".join(world.expand(form, country=country, Country=upper_first(country), city=city, continent=continent) for country, city, continent in rows))


def everyday(world):
    random = world.random
    kind = random.randrange(10)
    if kind < 3:
        question, thought, answer = random.choice(knowledge.FACTS)
        return Task(world.expand(question), thought, answer)
    if kind == 3:
        word, other = random.choice(knowledge.OPPOSITES)[:: random.choice([1, -1])]
        return Task(world.expand("[What is the opposite of {w}?|Opposite of {w}?|Name the opposite of {w}.]", w=word), f"The opposite of {word} is {other}.", f"The opposite of {word} is {other}.")
    if kind == 4:
        animal, sound = random.choice(list(knowledge.SOUNDS.items()))
        a = lexicon.with_article(animal)
        return Task(world.expand("[What sound does {a} make?|What does {a} say?]", a=a), f"{a.capitalize()} says {sound}.", f"{a.capitalize()} says {sound}.")
    if kind == 5:
        animal, legs = random.choice(list(knowledge.LEGS.items()))
        answer = f"{lexicon.with_article(animal).capitalize()} has {knowledge.NUMBER_WORDS[legs] if legs else 'no'} legs."
        return Task(f"How many legs does {lexicon.with_article(animal)} have?", answer, answer)
    if kind == 6:
        thing, color = random.choice(list(knowledge.THING_COLORS.items()))
        answer = f"{upper_first(thing)} is {color}."
        return Task(world.expand("[What color is {t}?|Which color is {t}?]", t=thing), answer, answer)
    if kind == 7:
        word, plural = random.choice(list(knowledge.PLURALS.items()))
        return Task(world.expand("[What is the plural of {w}?|Plural of {w}?]", w=word), f"The plural of {word} is {plural}.", f"The plural of {word} is {plural}.")
    if kind == 8:
        table, what = random.choice([(knowledge.PAST, "past tense of {w}"), (knowledge.BABIES, "name for a baby {w}")])
        word, form = random.choice(list(table.items()))
        what = what.format(w=word)
        return Task(f"What is the {what}?", f"The {what} is {form}.", f"The {what} is {form}.")
    table, unit = random.choice([(lexicon.DAYS, "day"), (lexicon.MONTHS, "month"), (lexicon.SEASONS, "season")])
    position = random.randrange(len(table))
    after = random.random() < 0.6
    other = table[(position + (1 if after else -1)) % len(table)]
    word = "after" if after else "before"
    return Task(f"Which {unit} comes {word} {table[position]}?", f"The {unit} {word} {table[position]} is {other}.", f"{other} comes {word} {table[position]}.")


# Arithmetic


def is_held_out(x, y):
    """Number pairs kept for the evaluation, in both orders: one in twelve."""
    low, high = sorted((x, y))
    return max(x, y) > 9 and (low * 7919 + high * 104729) % 12 == 0


def column_addition(x, y):
    lines, carry = [], 0
    for place in range(max(len(str(x)), len(str(y)))):
        a, b = x // 10**place % 10, y // 10**place % 10
        total = a + b + carry
        lines.append(f"{a} + {b}" + (f" + {carry}" if carry else "") + f" = {total}, write {total % 10}" + (", carry 1." if total > 9 else "."))
        carry = total // 10
    return "\n".join(lines + (["Write 1."] if carry else []))


def column_subtraction(x, y):
    lines, borrow = [], 0
    for place in range(len(str(x))):
        a, b = x // 10**place % 10, y // 10**place % 10 + borrow
        borrow = int(a < b)
        lines.append(f"{a + 10 * borrow} - {b} = {a + 10 * borrow - b}, write {a + 10 * borrow - b}" + (", borrow 1." if borrow else "."))
    return "\n".join(lines)


def pick_pair(random):
    while True:
        digits = random.choice([1, 2, 2, 2, 2, 3])
        x, y = random.randrange(10**digits), random.randrange(10 ** random.choice([1, digits, digits]))
        if random.random() < 0.5:
            x, y = y, x
        if not is_held_out(x, y):
            return x, y


ADD_QUESTION = "[What is {x} + {y}?|What is {x} + {y}?|What's {x} + {y}?|{x} + {y}|{x}+{y}|{x} + {y} = ?|Add {x} and {y}.|How much is {x} plus {y}?|What is {x} plus {y}?|Calculate {x} + {y}.|what is {x}+{y}?|Please add {x} and {y}.|What is the sum of {x} and {y}?|Compute {x} + {y}]"


def addition(world):
    x, y = pick_pair(world.random)
    return Task(world.expand(ADD_QUESTION, x=x, y=y), column_addition(x, y), f"{x} + {y} = {x + y}")


def other_arithmetic(world):
    random = world.random
    kind = random.random()
    if kind < 0.45:
        y, x = sorted(pick_pair(random))
        question = "[What is {x} - {y}?|{x} - {y}|{x} - {y} = ?|What is {x} minus {y}?|Subtract {y} from {x}.|Calculate {x} - {y}.]"
        return Task(world.expand(question, x=x, y=y), column_subtraction(x, y), f"{x} - {y} = {x - y}")
    if kind < 0.75:
        x, y = random.randrange(13), random.randrange(13)
        question = "[What is {x} times {y}?|What is {x} * {y}?|{x} * {y}|{x} x {y} = ?|Multiply {x} by {y}.|How much is {x} times {y}?]"
        return Task(world.expand(question, x=x, y=y), f"{x} times {y} is {x * y}.", f"{x} * {y} = {x * y}")
    if kind < 0.9:
        x, y = random.sample(range(100 if random.random() < 0.7 else 1000), 2)
        larger = random.random() < 0.6
        word, sign = ("larger", max) if larger else ("smaller", min)
        question = "[Which is {w}, {x} or {y}?|Which number is {w}: {x} or {y}?|Which of {x} and {y} is {w}?]"
        thought = f"{max(x, y)} is more than {min(x, y)}."
        return Task(world.expand(question, w=word, x=x, y=y), thought, f"{sign(x, y)} is {word}.")
    x = random.randrange(1000)
    question = "[Is {x} even or odd?|Is the number {x} even or odd?]"
    kind = "odd" if x % 2 else "even"
    return Task(world.expand(question, x=x), f"The last digit of {x} is {x % 10}, so it is {kind}.", f"{x} is {kind}.")


# Sequences and lists


def sequence(world):
    random = world.random
    kind = random.random()
    if kind < 0.2:
        start, step, length = random.randrange(1, 90), random.choice([1, 1, 1, 2, 5, 10]), random.randrange(4, 14)
        numbers = [start + step * i for i in range(length)]
        question = f"Count from {start} to {numbers[-1]}" + (f" in steps of {step}" if step > 1 else "") + "."
        return Task(question, f"I start at {start} and add {step} each time until {numbers[-1]}.", ", ".join(map(str, numbers)))
    if kind < 0.3:
        table = random.choice([lexicon.DAYS, lexicon.MONTHS, list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")])
        length = random.randrange(3, 6)
        start = random.randrange(len(table) - length)
        shown, following = table[start : start + length], table[start + length]
        question = world.expand("[What comes next: {s}?|What comes next? {s}|Continue: {s}]", s=", ".join(shown))
        return Task(question, f"After {shown[-1]} comes {following}.", following)
    length = random.randrange(3, 6)
    if kind < 0.85:
        step = random.choice([1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 15, 20, 25, 50, 100])
        start = random.choice([step, step, random.randrange(0, 100)])
        if random.random() < 0.2:
            start, step = start + step * (length + 4), -step
        rule = f"Each number is {abs(step)} {'more' if step > 0 else 'less'} than the one before."
        terms = [start + step * i for i in range(length + 3)]
        work = f"{terms[length - 1]} {'+' if step > 0 else '-'} {abs(step)} = {terms[length]}."
    else:
        factor = random.choice([2, 2, 3, 10])
        start = random.randrange(1, 8)
        terms = [start * factor**i for i in range(length + 3)]
        rule = f"Each number is {factor} times the one before."
        work = f"{terms[length - 1]} * {factor} = {terms[length]}."
    shown = ", ".join(map(str, terms[:length]))
    if random.random() < 0.75:
        question = world.expand(
            "[What comes next: {s}?|What comes next: {s}, ...|What comes next? {s}|What is the next number: {s}?|{s}, ... What comes next?|Which number comes next in {s}?|What number follows {s}?|What comes after {s}?]",
            s=shown,
        )
        return Task(question, f"{rule} {work}", f"The next number is {terms[length]}.")
    question = world.expand("[Continue the sequence: {s}|Continue: {s}|Continue this sequence: {s}, ...|Write the next three numbers: {s}]", s=shown)
    return Task(question, rule, ", ".join(map(str, terms[length:])))


def word_list(world):
    random = world.random
    pool = random.choice([lexicon.OBJECTS + lexicon.FOODS + lexicon.ANIMALS + lexicon.COLORS, lexicon.NAMES, lexicon.CITIES, lexicon.ANIMALS])
    words = random.sample(pool, random.randrange(3, 8))
    if random.random() < 0.1:
        words = [lexicon.invented_word(random, 2) for _ in words]
    listed = ", ".join(words)
    kind = random.randrange(7)
    if kind == 0:
        spaced = " ".join(words)
        return Task(world.expand("[Repeat exactly: {s}|Repeat after me: {s}|Say this: {s}|Repeat: {s}]", s=spaced), "I repeat the words exactly.", spaced)
    if kind == 1:
        return Task(world.expand("[Reverse this list: {s}|Reverse the list: {s}|Write this list backwards: {s}]", s=listed), f"The last word is {words[-1]}, so I begin with it.", ", ".join(words[::-1]))
    if kind == 2:
        in_order = sorted(words, key=str.lower)
        letters = ", ".join(word[0].upper() for word in in_order)
        return Task(world.expand("[Sort these words: {s}|Sort the words: {s}|Sort this list: {s}|Put these words in alphabetical order: {s}|Sort alphabetically: {s}]", s=listed), f"In order, the first letters are {letters}.", ", ".join(in_order))
    if kind == 3:
        question = world.expand("[How many words are there? {s}|Count the words: {s}|How many words are in this list: {s}]", s=listed)
        counted = ", ".join(f"{i} {word}" for i, word in enumerate(words, 1))
        return Task(question, f"I count: {counted}.", f"There are {len(words)} words.")
    if kind == 4:
        first = random.random() < 0.5
        which, word = ("first", words[0]) if first else ("last", words[-1])
        return Task(f"What is the {which} word of this list: {listed}", f"The {which} word is {word}.", f"The {which} word is {word}.")
    if kind == 5:
        missing = random.choice([word for word in pool if word not in words]) if random.random() < 0.5 else random.choice(words)
        inside = missing in words
        answer = f"Yes, {missing} is in the list." if inside else f"No, {missing} is not in the list."
        return Task(f"Is {missing} in this list: {listed}", f"I look for {missing} in the list.", answer)
    bullets = "\n".join(f"{i}. {word}" for i, word in enumerate(words, 1)) if random.random() < 0.5 else "\n".join(f"- {word}" for word in words)
    numbered = bullets[0] == "1"
    return Task(f"Write this as a {'numbered' if numbered else 'bullet'} list: {listed}", f"There are {len(words)} words, one on each line.", bullets)


def copying(world):
    """Words that no list holds, said again: the plainest exercise in looking back."""
    random = world.random
    words = [lexicon.invented_word(random, random.choice([2, 3, 4])) for _ in range(random.randrange(2, 12))]
    if random.random() < 0.3:
        words = [word.capitalize() for word in words]
    joined = random.choice([" ", ", ", "\n", "_", "/"]).join(words)
    if random.random() < 0.5:
        return document(f"{joined}\n{joined}\n{joined}")
    return Task(world.expand("[Repeat exactly: {s}|Repeat: {s}|Say this: {s}|Copy this text: {s}]", s=joined), "I repeat the words exactly.", joined)


def json_object(world):
    random = world.random
    name, age, city = random.choice(lexicon.NAMES), random.randrange(5, 90), random.choice(lexicon.CITIES)
    item, count = f"{random.choice(lexicon.COLORS)} {random.choice(lexicon.OBJECTS)}", random.randrange(1, 40)
    text, fields = random.choice([
        ("[{name} is {age} years old and lives in {city}.|I met {name} from {city}, who is {age}.|This is {name}, {age}, from {city}.]", dict(name=name, age=age, city=city)),
        ("[{name} wants to buy {count} pieces of the {item}.|Order for {name}: {count} x {item}.]", dict(customer=name, item=item, quantity=count)),
        ("[{name} works as a {job} in {city}.|{name} is a {job} and lives in {city}.]", dict(name=name, job=random.choice(lexicon.JOBS), city=city)),
        ("[The {item} costs {count} coins.|You can buy the {item} for {count} coins.]", dict(item=item, price=count)),
    ])  # fmt: skip
    text = world.expand(text, name=name, age=age, city=city, item=item, count=count, job=fields.get("job"))
    keys = random.sample(list(fields), random.randrange(1, len(fields) + 1)) if random.random() < 0.4 else list(fields)
    answer = json.dumps({key: fields[key] for key in keys})
    question = world.expand("[Extract {k} as JSON.|Give me {k} as JSON.|Write {k} as a JSON object.|Return JSON with the keys {k}.]", k=", ".join(keys))
    question = f"{question}\n\n{text}" if random.random() < 0.6 else f"{text}\n\n{question}"
    thought = "The user wants JSON with the keys " + ", ".join(keys) + "."
    return Task(question, thought, answer, "Reply with JSON only." if random.random() < 0.3 else None)


# Finding and remembering


def needle_text(random, filler_chars, facts, write=stories.write_story):
    """Paragraphs of stories with the sentences of `facts` put in at random places."""
    filler, chars = [], 0
    while chars < filler_chars:
        paragraphs = write(random).paragraphs
        filler += paragraphs
        chars += sum(map(len, paragraphs))
    for fact in facts:
        filler.insert(random.randrange(len(filler) + 1), fact)
    return "\n\n".join(filler)


def needle(world, filler_chars=None):
    random = world.random
    filler_chars = filler_chars or int(10 ** random.uniform(2.0, 3.45))
    doors = random.sample([f"{color} {thing}" for color in lexicon.COLORS for thing in ("door", "box", "gate", "chest", "house")], random.randrange(1, 4))
    codes = ["".join(random.choice("0123456789") for _ in range(4)) for _ in doors]
    facts = [f"The secret code of the {door} is {code}." for door, code in zip(doors, codes)]
    text = needle_text(random, filler_chars, facts)
    question = f"What is the secret code of the {doors[0]}?"
    question = f"{text}\n\n{question}" if random.random() < 0.8 else f"{question}\n\n{text}"
    return Task(question, "The text says: " + facts[0], facts[0])


def long_needle(world):
    return needle(world, int(10 ** world.random.uniform(3.3, 4.5)))


def remember(world):
    """A conversation whose last question asks for something said before."""
    random = world.random
    name, food, animal, city = random.choice(lexicon.NAMES), random.choice(lexicon.FOODS), random.choice(lexicon.ANIMALS), random.choice(lexicon.CITIES)
    if random.random() < 0.5:
        name, city = (lexicon.invented_word(random, random.choice([2, 3])).capitalize() for _ in range(2))
    number = random.randrange(10, 10000)
    said, question, answer = random.choice([
        (f"My name is {name}.", "[What is my name?|Do you know my name?|Who am I?|What's my name?]", f"Your name is {name}."),
        (f"I am {name}.", "[What is my name?|Who am I?]", f"Your name is {name}."),
        (f"I like {food}.", "[What do I like?|What do I like to eat?]", f"You like {food}."),
        (f"I live in {city}.", "[Where do I live?|In which city do I live?]", f"You live in {city}."),
        (f"I have {lexicon.with_article(animal)}.", "[What animal do I have?|Which animal do I have?]", f"You have {lexicon.with_article(animal)}."),
        (f"Remember the number {number}.", "[What number did I tell you?|Which number should you remember?]", f"The number is {number}."),
    ])  # fmt: skip
    reply = f"Nice to meet you, {name}!" if name in said else "All right, I will remember that."
    messages = [user(said), assistant(reply)]
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        between = random.choice([small_talk, capital, addition, everyday])(world)
        messages += [user(between.question), assistant(between.answer)]
    if random.random() < 0.5:
        messages = [user(random.choice(["Hello", "Hi!", "Hello!"])), assistant("Hello! How can I help you?"), *messages]
    if random.random() < 0.25:  # also train the reply itself
        return conversation([user(said), assistant(reply, f"The user tells me something: {said}")], random.random() < 0.5)
    messages += [user(world.expand(question)), assistant(answer, f"Before, the user said: {said}")]
    return conversation(messages, random.random() < 0.5)


def small_talk(world):
    question, thought, answer = world.random.choice(knowledge.TALK)
    return Task(world.expand(question), thought, world.expand(answer))


def snippet(world):
    """A few words or sentences of a public text."""
    text = world.texts[world.random.choice(["web", "wordnet", "factbook"])]
    start = text.find(" ", world.random.randrange(len(text) - 1000)) + 1
    end = text.find(" ", start + int(10 ** world.random.uniform(0.8, 2.4)))
    return text[start:end].strip().replace("\n", " ") or "Well"


def beyond(world):
    """Honest about what a model of this size does not know."""
    if world.random.random() < 0.35:
        return Task(snippet(world), "I know too little to answer this.", world.expand(knowledge.PUZZLED))
    topic = world.random.choice(world.topics)
    return Task(world.expand(knowledge.BEYOND, topic=topic), "I know too little about this.", world.expand(knowledge.BEYOND_ANSWER, topic=topic))


def unneeded_tools(world):
    """Tools are offered, but the question needs none of them."""
    random = world.random
    tools = toolcalls.tool_prompt(random)[0]
    tools = [tool for tool in tools if tool.domain not in (toolcalls.DOMAINS["multiply"], toolcalls.DOMAINS["subtract"])] or tools[:1]
    task = random.choice([capital, small_talk, everyday, addition])(world)
    messages = [user(task.question), assistant(task.answer, task.thought)]
    if random.random() < 0.3:
        messages.insert(0, system(random.choice(toolcalls.SYSTEMS)))
    return conversation(messages, random.random() < 0.5, [tool.schema for tool in tools])


def plain_text(world):
    name = world.random.choice(["web", "web", "wordnet", "factbook"])
    text = world.texts[name]
    start = world.random.randrange(max(1, len(text) - 3000))
    start = text.find("\n" if name != "web" else " ", start) + 1
    return document(text[start : start + 2500].strip())


def tool_call(world):
    return toolcalls.tool_conversation(world.random)


# Putting tasks into conversations

SYSTEMS = (
    "You are a helpful assistant.|You are lily-nano.|Answer briefly.|You are a friendly helper.|Be kind and short.|"
    "You are lily-nano, a small demonstration model.|You are a helpful assistant. Keep your answers short."
).split("|")
HISTORY = (small_talk, capital, addition, everyday, sequence, word_list, story)


def pose(task, world):
    """A task as the last question of a conversation."""
    random = world.random
    messages = []
    if task.system or random.random() < 0.3:
        other = snippet(world) if random.random() < 0.15 else random.choice(SYSTEMS)  # an unknown system text must not derail it
        messages.append(system(task.system or other))
    if random.random() < 0.22:
        for _ in range(random.choice([1, 1, 2, 3])):
            earlier = random.choice(HISTORY[:-1] if random.random() < 0.9 else HISTORY)(world)
            messages += [user(earlier.question), assistant(earlier.answer)]
    messages += [user(task.question), assistant(task.answer, task.thought)]
    return conversation(messages, random.random() < 0.55)


# Task and its share of the tokens in short sequences.
TASKS = {
    story: 19, story_text: 8, story_question: 7, capital: 11, capital_text: 1, everyday: 5, addition: 14, other_arithmetic: 4, sequence: 6,
    word_list: 6, copying: 4, json_object: 4, tool_call: 15, unneeded_tools: 2.5, needle: 5, remember: 3, small_talk: 4, beyond: 1.5, plain_text: 5,
}  # fmt: skip
# Long sequences: retrieval over long texts, and everything else packed.
LONG_TASKS = {**{task: share * 0.5 for task, share in TASKS.items()}, long_needle: 50}


def sample(task, world):
    """One training sample of this task."""
    made = task(world)
    return pose(made, world) if isinstance(made, Task) else made
