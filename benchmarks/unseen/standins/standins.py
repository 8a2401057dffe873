"""Data for scripts that would download theirs: `python standins.py` writes files here."""

import json
import pickle
import sys
from pathlib import Path

import numpy as np

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def load_data(count=20_000):
    """Return MNIST's arrays as Keras does: noise about one mean image for each class."""
    drawn = np.random.default_rng(7)
    means = drawn.integers(0, 255, (10, 28, 28))
    parts = []
    for size in (count, count // 6):
        labels = drawn.integers(0, 10, size).astype(np.uint8)
        images = means[labels] + drawn.normal(0, 80, (size, 28, 28))
        parts.append((images.clip(0, 255).astype(np.uint8), labels))
    return parts


def mnist():
    """Return MNIST's arrays as JAX's examples do: flat images, and labels as vectors."""
    arrays = []
    for images, labels in load_data():
        arrays += [
            images.reshape(len(images), -1) / np.float32(255),
            np.eye(10, dtype=np.float32)[labels],
        ]
    return arrays


def _sentence(number):
    return " ".join(WORDS[(number + step * (1 + number % 3)) % 10] for step in range(12))


def _write_texts(folder):
    folder.mkdir(parents=True)
    texts = [_sentence(number * number) for number in range(4_000)]
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text(" \n".join(texts if name == "train" else texts[:200]))
    letters = sorted(set("\n".join(texts)))
    tokens = np.array([letters.index(letter) for letter in "\n".join(texts)], dtype=np.uint16)
    tokens.tofile(folder / "train.bin")
    tokens[:20_000].tofile(folder / "val.bin")
    table = dict(enumerate(letters))
    meta = {"vocab_size": len(letters), "itos": table, "stoi": {v: k for k, v in table.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def _write_model(folder):
    import tokenizers
    import transformers

    rows = [{"instruction": WORDS[n % 10], "output": _sentence(n)} for n in range(600)]
    (folder / "alpaca").mkdir(parents=True)
    (folder / "alpaca/train.json").write_text("\n".join(map(json.dumps, rows)))
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=["<end>"], initial_alphabet=letters)
    words.train_from_iterator([row["output"] for row in rows], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    fast.save_pretrained(folder / "model")
    config = transformers.LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")


if __name__ == "__main__":
    _write_texts(Path("data/text"))
    if "model" in sys.argv:
        _write_model(Path("data"))
