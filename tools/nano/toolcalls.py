"""Tool-call round trips. Function and parameter names are drawn anew for each sample, so that the model must copy
them from the schema in the prompt instead of remembering them.

Start reading at `DOMAINS`: a domain is something that a tool can do. `HELD_OUT_DOMAINS` never appear in training.
"""

import json
from dataclasses import dataclass

from . import lexicon
from .chat import assistant, conversation, render_value, system, tool_result, user
from .grammar import expand


@dataclass(frozen=True)
class Domain:
    """What a tool does. `parameters` maps a role to (type, alternative names); texts use the roles as fields."""

    names: str  # alternative function names
    description: str
    parameters: dict
    question: str
    intent: str  # completes "The user wants"
    result: str  # fields of the result, `key=role` pairs; further roles come from `fill`
    answer: str


CITY = ("string", "city location place town")
ITEM = ("string", "item product article")
PERSON = ("string", "name person contact who")
TIME = ("string", "time at when")

DOMAINS = {
    "weather": Domain("get_weather weather_lookup current_weather fetch_forecast", "[Get|Look up] the weather [for|in] a city.", {"city": CITY},
        "[What is the weather in {city}?|How is the weather in {city} today?|Is it warm in {city}?|Weather in {city}, please.|Tell me the weather in {city}.|What's the weather like in {city}?]",
        "the weather in {city}", "temperature=degrees condition=sky", "[It is {degrees} degrees and {sky} in {city}.|The weather in {city} is {sky}, with {degrees} degrees.]"),
    "time": Domain("get_time local_time clock_in_city time_lookup", "Get the [local|current] time in a city.", {"city": CITY},
        "[What time is it in {city}?|Tell me the time in {city}.|How late is it in {city} now?]", "the time in {city}", "time=clock", "It is {clock} in {city}."),
    "multiply": Domain("multiply times product mul", "Multiply two numbers.", {"x": ("integer", "a x first left"), "y": ("integer", "b y second right")},
        "[What is {x} times {y}?|Multiply {x} by {y}.|Calculate {x} * {y}.]", "to multiply {x} by {y}", "result=product", "{x} times {y} is {product}."),
    "subtract": Domain("subtract minus difference", "Subtract the second number from the first.", {"x": ("integer", "a x first left"), "y": ("integer", "b y second right")},
        "[What is {x} minus {y}?|Subtract {y} from {x}.]", "to subtract {y} from {x}", "result=difference", "{x} minus {y} is {difference}."),
    "message": Domain("send_message send_text message_contact notify", "Send a message to a person.", {"person": ("string", "to recipient contact"), "text": ("string", "text message body")},
        "[Tell {person} to {text}.|Send {person} a message: {text}|Write to {person}: {text}]", "to send {person} a message", "sent=yes", "[I sent the message to {person}.|Done. The message to {person} is sent.]"),
    "price": Domain("get_price price_lookup item_price", "[Get|Look up] the price of an item.", {"item": ITEM},
        "[How much does the {item} cost?|What is the price of the {item}?|What does the {item} cost?]", "the price of the {item}", "price=count", "The {item} costs {count} coins."),
    "alarm": Domain("set_alarm alarm_at wake_up_call", "Set an alarm.", {"clock": TIME},
        "[Wake me up at {clock}.|Set an alarm for {clock}.|Please set my alarm to {clock}.]", "an alarm at {clock}", "set=yes", "Your alarm is set for {clock}."),
    "timer": Domain("start_timer set_timer countdown", "Start a timer.", {"count": ("integer", "minutes duration length")},
        "[Set a timer for {count} minutes.|Start a timer of {count} minutes.]", "a timer of {count} minutes", "started=yes", "The timer is set for {count} minutes."),
    "translate": Domain("translate translate_word to_language", "Translate a word into another language.", {"item": ("string", "word text"), "language": ("string", "language target_language to")},
        "[Translate {item} into {language}.|How do you say {item} in {language}?|What is the {language} word for {item}?]", "{item} in {language}", "translation=word", "{item} in {language} is {word}."),
    "table": Domain("book_table reserve_table restaurant_booking", "Reserve a table in a restaurant.", {"person": PERSON, "count": ("integer", "guests people seats")},
        "[Book a table for {count} people under the name {person}.|Reserve a table for {count} in the name of {person}.]", "a table for {count} people", "booking=number", "The table for {count} is booked. The number is {number}."),
    "song": Domain("play_song play_music start_song", "Play a song.", {"thing": ("string", "title song track")},
        "[Play the song {thing}.|I want to hear {thing}.|Please play {thing}.]", "to hear the song {thing}", "playing=yes", "Now playing {thing}."),
    "light": Domain("set_light switch_light light_control", "Turn the light in a room on or off.", {"room": ("string", "room where"), "state": ("string", "state mode value")},
        "[Turn {state} the light in the {room}.|Switch the {room} light {state}.]", "the light in the {room} {state}", "done=yes", "The light in the {room} is {state}."),
    "heating": Domain("set_temperature heat_room thermostat", "Set the temperature of a room.", {"room": ("string", "room where"), "degrees": ("integer", "degrees temperature target")},
        "[Set the {room} to {degrees} degrees.|Make it {degrees} degrees in the {room}.]", "the {room} at {degrees} degrees", "done=yes", "The {room} is set to {degrees} degrees."),
    "search": Domain("web_search search find_pages lookup", "Search for pages about a topic.", {"thing": ("string", "query topic q")},
        "[Search for {thing}.|Find pages about {thing}.|Look up {thing}.]", "pages about {thing}", "hits=number", "I found {number} pages about {thing}."),
    "shopping": Domain("add_to_list shopping_list_add add_item", "Add something to the shopping list.", {"food": ("string", "item product entry"), "count": ("integer", "quantity amount count")},
        "[Add {count} {food} to my shopping list.|Put {count} {food} on the list.]", "{count} {food} on the list", "ok=yes", "I added {count} {food} to your list."),
    "calendar": Domain("add_event create_event calendar_add", "Add an event to the calendar.", {"event": ("string", "title event subject"), "day": ("string", "day date weekday")},
        "[Put {event} on {day} into my calendar.|Add {event} to my calendar for {day}.]", "{event} in the calendar on {day}", "ok=yes", "I added {event} on {day}."),
    "distance": Domain("get_distance distance_between how_far", "Get the distance between two cities.", {"city": ("string", "from origin start"), "city2": ("string", "to destination end")},
        "[How far is it from {city} to {city2}?|What is the distance from {city} to {city2}?]", "the distance from {city} to {city2}", "kilometers=number", "It is {number} kilometers from {city} to {city2}."),
    "flight": Domain("find_flight search_flights flight_lookup", "Find a flight between two cities on a day.", {"city": ("string", "from origin departure"), "city2": ("string", "to destination arrival"), "day": ("string", "day date")},
        "[Find a flight from {city} to {city2} on {day}.|I want to fly from {city} to {city2} on {day}.]", "a flight from {city} to {city2}", "flight=number departs=clock", "Flight {number} leaves at {clock}."),
    "order": Domain("order_food place_order food_order", "Order food.", {"food": ("string", "food dish item"), "count": ("integer", "portions count amount")},
        "[Order {count} portions of {food}.|Please order {food} for {count} people.]", "{count} portions of {food}", "order=number", "I ordered {count} portions of {food}. The order number is {number}."),
    "phone": Domain("phone_number find_number lookup_contact", "Look up the phone number of a person.", {"person": PERSON},
        "[What is the phone number of {person}?|Find the number of {person}.|What number does {person} have?]", "the phone number of {person}", "phone=number", "The phone number of {person} is {number}."),
    "read": Domain("read_file open_file cat_file", "Read a file.", {"path": ("string", "path file filename")},
        "[Read the file {path}.|What is in {path}?|Show me {path}.]", "to see {path}", "content=text", "The file {path} says: {text}"),
    "write": Domain("write_file save_file store_text", "Write text to a file.", {"path": ("string", "path file filename"), "text": ("string", "content text data")},
        "[Write {text} to {path}.|Save {text} in the file {path}.]", "to save a text in {path}", "written=yes", "I saved it in {path}."),
    "delete": Domain("delete_file remove_file erase", "Delete a file.", {"path": ("string", "path file filename")},
        "[Delete {path}.|Remove the file {path}.]", "to delete {path}", "deleted=yes", "I deleted {path}."),
    "dice": Domain("random_number roll_dice pick_number", "Pick a random number from 1 up to a limit.", {"limit": ("integer", "max limit highest")},
        "[Pick a random number up to {limit}.|Give me a number between 1 and {limit}.]", "a random number up to {limit}", "number=picked", "The number is {picked}."),
    "birthday": Domain("get_birthday birthday_of birth_date", "Look up the birthday of a person.", {"person": PERSON},
        "[When is the birthday of {person}?|When was {person} born?]", "the birthday of {person}", "birthday=date", "The birthday of {person} is {date}."),
    "feed": Domain("feed_animal feeding give_food", "Feed an animal.", {"animal": ("string", "animal pet who"), "food": ("string", "food meal what")},
        "[Give the {animal} some {food}.|Feed the {animal} with {food}.]", "to feed the {animal}", "ok=yes", "I gave the {animal} some {food}."),
    "stock": Domain("in_stock stock_level check_stock", "Check how many pieces of an item are in stock.", {"item": ITEM},
        "[How many pieces of the {item} are in stock?|Do we have the {item} in stock?]", "the stock of the {item}", "pieces=count", "There are {count} pieces of the {item} in stock."),
    "reminder": Domain("add_reminder remind_me create_reminder", "Create a reminder.", {"text": ("string", "text note what"), "clock": TIME},
        "[Remind me to {text} at {clock}.|At {clock}, remind me to {text}.]", "a reminder at {clock}", "ok=yes", "I will remind you at {clock}."),
    "wifi": Domain("set_wifi wifi_control network_switch", "Turn the wireless network on or off.", {"flag": ("boolean", "enabled on active")},
        "[Turn {state} the wifi.|Switch the wifi {state}.|Turn the wireless network {state}.]", "the wifi {state}", "done=yes", "The wifi is {state}."),
    "convert": Domain("convert_money exchange currency_convert", "Convert an amount of money.", {"amount": ("number", "amount value sum"), "money": ("string", "from source currency"), "money2": ("string", "to target into")},
        "[Convert {amount} {money} to {money2}.|How much is {amount} {money} in {money2}?]", "to convert {amount} {money} to {money2}", "converted=number", "{amount} {money} are {number} {money2}."),
}
HELD_OUT_DOMAINS = {
    "door": Domain("open_door unlock_gate door_control", "Open a door of the house.", {"color": ("string", "door color which")},
        "[Open the {color} door.|Please unlock the {color} door.]", "the {color} door open", "open=yes", "The {color} door is open."),
    "water": Domain("water_plant irrigate watering", "Give water to a plant.", {"plant": ("string", "plant name which"), "count": ("integer", "liters amount water")},
        "[Give the {plant} {count} liters of water.|Water the {plant} with {count} liters.]", "to water the {plant}", "ok=yes", "I gave the {plant} {count} liters of water."),
    "population": Domain("population_of count_people inhabitants", "Get the number of people in a city.", {"city": CITY},
        "[How many people live in {city}?|What is the population of {city}?]", "the population of {city}", "people=number", "{number} people live in {city}."),
    "taxi": Domain("call_taxi order_taxi ride", "Call a taxi.", {"person": ("string", "passenger name for"), "clock": TIME},
        "[Call a taxi for {person} at {clock}.|{person} needs a taxi at {clock}.]", "a taxi for {person}", "taxi=number", "Taxi {number} will come at {clock}."),
}
LANGUAGES = "German French Spanish Italian Dutch Polish Swedish Greek Turkish Japanese".split()
ROOMS = "kitchen bedroom bathroom garage office hall attic cellar".split()
EVENTS = "dinner|a meeting|the concert|a dentist visit|swimming|a walk|the exam|lunch".split("|")
CHORES = "bring the {object}|buy some {food}|feed the {animal}|call {person2}|close the window|water the flowers|clean the {room}|come home".split("|")
SYSTEMS = (
    "You are a helpful assistant.|You can use tools.|Use the tools when they help.|You are lily-nano.|"
    "Answer briefly.|You are a friendly helper. Keep your answers short."
).split("|")


INVENTED = 0.4


def fill(random, names=lexicon.NAMES, cities=lexicon.CITIES, invented=0.0):
    """Values for every role that a domain can name; `invented` is the chance of people and cities that no list holds."""
    city, city2 = random.sample(cities, 2)
    person, person2 = random.sample(names, 2)
    if invented and random.random() < invented:
        city, city2, person, person2 = (lexicon.invented_word(random, random.choice([2, 3])).capitalize() for _ in range(4))
    item = f"{random.choice(lexicon.COLORS)} {random.choice(lexicon.OBJECTS)}" if random.random() < 0.5 else random.choice(lexicon.OBJECTS)
    x, y = random.randrange(2, 1000), random.randrange(2, 1000)
    limit = random.randrange(5, 1000)
    word = lexicon.invented_word(random, random.choice([2, 3]))
    folder = random.choice(["", "", "notes/", "data/", "/home/" + random.choice(names).lower() + "/"])
    values = dict(
        city=city, city2=city2, person=person, person2=person2, item=item, x=x, y=y, product=x * y, difference=x - y,
        degrees=random.randrange(-9, 38), sky=random.choice("sunny cloudy rainy windy foggy snowy clear".split()),
        clock=f"{random.randrange(24):02d}:{random.randrange(60):02d}", count=random.randrange(2, 60), number=random.randrange(100, 10000),
        limit=limit, picked=random.randrange(1, limit + 1), language=random.choice(LANGUAGES), word=word,
        thing=random.choice([item, word.capitalize(), f"{random.choice(lexicon.ADJECTIVES)} {random.choice(lexicon.ANIMALS)}s", f"the {random.choice(lexicon.PLACES)}"]),
        room=random.choice(ROOMS), state=random.choice(["on", "off"]), food=random.choice(lexicon.FOODS), animal=random.choice(lexicon.ANIMALS),
        object=random.choice(lexicon.OBJECTS), color=random.choice(lexicon.COLORS), event=random.choice(EVENTS), day=random.choice(lexicon.DAYS),
        amount=random.choice([random.randrange(1, 500), random.randrange(10, 5000) / 10 + 0.05]),
        path=folder + random.choice([word, random.choice(lexicon.OBJECTS)]) + random.choice([".txt", ".md", ".json", ".csv"]),
        date=f"{random.choice(lexicon.MONTHS)} {random.randrange(1, 29)}", plant=random.choice("rose tulip cactus fern lemon tree palm ivy".split()), yes=True,
    )
    values["flag"] = values["state"] == "on"
    values["money"], values["money2"] = random.sample("euros dollars pounds yen francs crowns".split(), 2)
    values["text"] = random.choice(CHORES).format(**values)
    return values


@dataclass
class Tool:
    """A domain under concrete names, with a schema as clients send it."""

    domain: Domain
    name: str
    parameters: dict  # role -> name in the schema
    schema: dict

    def call(self, values):
        return {"name": self.name, "arguments": {name: values[role] for role, name in self.parameters.items()}}


def name_tool(domain, random):
    """Give the domain's function and parameters names: usual ones, or invented ones that can only be copied."""
    name = random.choice(domain.names.split())
    style = random.random()
    if style < 0.3:
        name = lexicon.invented_word(random) + random.choice(["", "_" + name])
    elif style < 0.5:
        name = random.choice(["", "my_", "tool_", "home_", "app_"]) + name + random.choice(["", "_v2", "_now", "_api"])
    parameters = {}
    for role, (_, names) in domain.parameters.items():
        choice = random.choice(names.split())
        if random.random() < 0.15 or choice in parameters.values():
            choice = lexicon.invented_word(random, 2)
        parameters[role] = choice
    properties = {}
    for role, parameter in parameters.items():
        properties[parameter] = {"type": domain.parameters[role][0]}
        if random.random() < 0.35:
            properties[parameter]["description"] = f"The {domain.parameters[role][1].split()[0]}"
    required = list(properties)
    if random.random() < 0.15:
        properties[random.choice(["unit", "format", "verbose", "note"])] = {"type": random.choice(["string", "boolean"])}
    schema = {"type": "object", "properties": properties, "required": required}
    if random.random() < 0.1:
        schema["additionalProperties"] = False
    function = {"name": name, "description": expand(domain.description, random), "parameters": schema}
    if random.random() < 0.1:
        function["strict"] = True
    return Tool(domain, name, parameters, {"type": "function", "function": function})


def tool_prompt(random, domains=None, names=lexicon.NAMES, cities=lexicon.CITIES, distractors=None, invented=0.0):
    """A question for one tool among up to four: (tools, the fitting tool, its values, the question)."""
    domains = domains or list(DOMAINS.values())
    domain = random.choice(domains)
    others = [other for other in (distractors or domains) if other is not domain]
    tools = [name_tool(each, random) for each in [domain, *random.sample(others, random.choice([0, 0, 1, 1, 2, 3]))]]
    chosen = tools[0]
    random.shuffle(tools)
    values = fill(random, names, cities, invented)
    return tools, chosen, values, expand(domain.question, random, values)


def result_of(tool, values, random):
    pairs = dict(pair.split("=") for pair in tool.domain.result.split())
    return json.dumps({key: values[role] for key, role in pairs.items()})


def describe_call(tool, values):
    arguments = " and ".join(f"{name} {render_value(values[role])}" for role, name in tool.parameters.items())
    return f"I call {tool.name} with {arguments}."


def tool_conversation(random):
    """Question, call, and in most samples the tool's result and the final answer; sometimes two calls at once."""
    thinking = random.random() < 0.5
    tools, tool, values, question = tool_prompt(random, invented=INVENTED)
    messages = [system(random.choice(SYSTEMS))] if random.random() < 0.35 else []
    if random.random() < 0.12:
        messages += [user(random.choice(["Hello", "Hi", "Hello!"])), assistant("Hello! How can I help you?")]
    elif random.random() < 0.15:
        messages += round_trip(random, tool, [fill(random, invented=INVENTED)])
    cases = [values]
    if random.random() < 0.1:
        cases.append(fill(random, invented=INVENTED))
    turns = round_trip(random, tool, cases, question)
    messages += turns if random.random() < 0.75 else turns[:2]
    return conversation(messages, thinking, [each.schema for each in tools])


def round_trip(random, tool, cases, question=None):
    """Question, calls, results and answer, one call for each of `cases`."""
    questions = [expand(tool.domain.question, random, values) for values in cases]
    questions[0] = question or questions[0]
    intent = " and ".join(tool.domain.intent.format(**values) for values in cases)
    thought = f"The user wants {intent}. " + " ".join(describe_call(tool, values) for values in cases)
    answer = " ".join(expand(tool.domain.answer, random, values) for values in cases)
    return [
        user(" ".join(questions)),
        assistant("", thought, [tool.call(values) for values in cases]),
        *(tool_result(result_of(tool, values, random)) for values in cases),
        assistant(answer, "The tool has answered. I tell the user the result."),
    ]
