"""Build lily-nano's tokenizer: byte-level BPE with the pre-tokenizer and the special tokens of the Qwen3.6 family.

`python -m nano.tokenizer --texts DIR --out models/lily-nano` writes tokenizer.json and tokenizer_config.json.
The ids differ from the real model's; the names, their order and their "special" flags are the same.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from . import lexicon, stories, toolcalls
from .config import VOCAB_SIZE

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (  # in the order of the real tokenizer
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> "
    "<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> "
    "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
    "<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()
SURVIVES_SKIPPING = set(  # "special": false, so skip_special_tokens keeps them
    "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think> "
    "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>".split()
)


def training_texts(folder, seed=7):
    """What the merges are learnt from: the public texts, stories, tool conversations and the word lists."""
    source = random.Random(seed)
    for name, chars in (("web", 1_200_000), ("wordnet", 800_000), ("factbook", 300_000)):
        text = (folder / f"{name}.txt").read_text()[:chars]
        yield from (text[start : start + 2000] for start in range(0, len(text), 2000))
    for country, capital, continent in json.loads((folder / "countries.json").read_text()):
        yield from [f"What is the capital of {country}? The capital of {country} is {capital}. {country} is in {continent}."] * 4
    for _ in range(6000):
        yield stories.write_story(source).text
    for _ in range(3000):
        text = toolcalls.tool_conversation(source).text
        for token in SPECIAL:
            text = text.replace(token, "")
        yield text
    for words in (lexicon.NAMES, lexicon.ANIMALS, lexicon.ADJECTIVES, lexicon.COLORS, lexicon.OBJECTS, lexicon.PLACES, lexicon.FOODS, lexicon.CITIES, lexicon.DAYS, lexicon.MONTHS, lexicon.JOBS):
        yield from [" " + ", ".join(words) + "\n" + "\n".join(words)] * 30


def build(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(token, special=token not in SURVIVES_SKIPPING, normalized=False) for token in SPECIAL])
    return tokenizer


def tokenizer_config(tokenizer, context):
    decoder = {
        str(tokenizer.token_to_id(token)): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": token not in SURVIVES_SKIPPING,
        }
        for token in SPECIAL
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": [token for token in SPECIAL[1:] if token not in SURVIVES_SKIPPING],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": context,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def main():
    from .config import Shape

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, help="folder written by nano.texts")
    parser.add_argument("--out", type=Path, required=True, help="model folder")
    args = parser.parse_args()
    tokenizer = build(training_texts(args.texts))
    tokenizer.save(str(args.out / "tokenizer.json"))
    config = tokenizer_config(tokenizer, Shape().max_position_embeddings)
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"vocabulary {tokenizer.get_vocab_size()}, special ids from {tokenizer.token_to_id(SPECIAL[0])}")


if __name__ == "__main__":
    main()
