#!/usr/bin/env python3
"""Makes the files of reference/ with Hugging Face's `tokenizers` (0.23.3 was used): small tokenizers in each style, and
what they make of difficult texts. Run it by hand; the tests read the files only.

    tests/tools/text/make_tokenizer_reference.py
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent / "reference"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
END = "<|endoftext|>"

SENTENCES = """\
The scale of the loss grows until a gradient overflows, and then it is halved.
It's what they'd said: we've got 12 layers, I'll take 3, you're fine, she isn't.
def forward(self, x):\n    if x is None:\n        return None\n\n    return self.layers[0](x) + 1.0e-5
for (int i = 0; i < count; ++i) {\n\tsum += values[i] * values[i];  // in fp32\n}
Der Gradient läuft über; die Größe wird halbiert. Ça dépend de la précision, où qu'elle soit.
Потери растут, пока градиент не переполнится. Η κλίμακα της απώλειας μεγαλώνει.
损失的比例不断增加，直到梯度溢出。勾配があふれるまで、損失の倍率は大きくなります。
손실의 배율은 기울기가 넘칠 때까지 커집니다. हानि का पैमाना बढ़ता रहता है।
https://example.org/a/b?c=1&d=%20e#f 2024-05-17T08:30:00Z 1,234,567.89 0x7fff 3.14159
banana bandana cabana, aaaa aaaaa aaaaaa, abababab, mississippi, -- --- ---- ===== _____
🙂 😀 👩‍👩‍👧 🇩🇪 ½ ² Ⅷ ٣ ४ e\u0301 \u212b \u1100\u1161\u11a8
"""


def training_text():
    words = random.Random(5)
    lines = SENTENCES.splitlines()
    return "\n".join(words.choice(lines) + words.choice(["", " ", "  ", "\n", "\r\n", "\t"]) for _ in range(70)) + "\n"


TEXTS = [
    "", " ", "  ", "\n", "\t \n", "a", " a", "a ", "Hello, world!", "  two  spaces  ", "tabs\tand\r\nlines\r\n\r\n",
    "\n\n\n    indented\n\n", "x  \n  y", "trailing   ", "\u00a0no\u00a0break\u3000wide", "\u180emongolian\u180e x\u180e",
    "\u0085next\u0085 line\u2028sep\u2029", "it's I'LL don'T we've 'S 's't x'RE '\u017f'", "'''quotes''' \"d\" `b`",
    "1 12 123 1234 12345 1,234.5 a1b2", "٣٤٥ ½²Ⅷ ४५६ 一二三", "naïve café Ångström", "e\u0301 a\u0323\u0307 a\u0307\u0323",
    "\u212b \u2126 \u1100\u1161\u11a8 \uac00\u11a8", "ﬁ ﬃ ẞ ǆ", "Привет, мир! Здравствуйте", "Γειά σου Κόσμε", "שלום עולם",
    "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界！这是一个测试。", "こんにちは、世界。カタカナ", "안녕하세요 세계",
    "🙂😀 👩\u200d👩\u200d👧\u200d👦 🇩🇪 👍🏽 ❤\ufe0f", "\u200b\u200c\u200d\ufeff", "\x00\x01\x02\x1b[0m\x7f", "a\x00b\x00",
    "def f(x):\n\treturn x**2 + 1  # note\n\n\nclass A:\n    pass\n", "int main() { return 0; } // ok\n",
    "<a href=\"http://x.y/z?q=1&r=2\">link</a>", "aaaa" * 40, "ab" * 60, " " * 90, "\n" * 50, "-" * 70, "🙂" * 20,
    "\U00010348\U0001f0a1\U0002000b\U000e0001", "\u0378 unassigned \U000abcde", "mixed МixΕd ｆｕｌｌ ｗｉｄｔｈ",
    END, "a" + END + "b", END + END, " " + END + " ", "a " + END + "\n b", "<|endoftext", "x<|endoftext|>y<|endof",
    "<left>", "a   <left>   b", "a   <right>   b <right>\n\nc", "<both>", " \t<both>\n <both> x", "word", "a word.",
    "words sword word_ word1 (word) \u00e9word wordé word word", "<nor\u0065\u0301>", "a<noré>b<nore\u0301>c",
    "<s> and </s> x<s>y", "<unk>", "<0x41>", "\u2581under\u2581\u2581line", "a\u2581b c", "<left><right>  <both>",
    "\u00e9\u00e9\u00e9 \u6f22\u5b57 \U0001f999\U0001f999", "x" * 300 + " y", "qwertyuiopasdfghjklzxcvbnm" * 6,
]
ADDED = [
    AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
    AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False), AddedToken("<nor\u00e9>", normalized=True),
]


def byte_level(pattern, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = last if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), last])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(tokenizer, texts, vocab, special=(END,), **more):
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(special), show_progress=False, **more)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def llama2(texts):
    """A model of characters with byte fallback, as converted from sentencepiece."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    # Words for the trainer only: sentencepiece has no tokens with a space in the middle.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    train(tokenizer, texts, 620, special)
    saved = json.loads(tokenizer.to_str())
    saved["pre_tokenizer"] = None
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return train(tokenizer, texts, 400, ["<unk>", "<s>", "</s>"], limit_alphabet=80)


def digits(texts):
    """As SmolLM2: each digit alone, then GPT-2's pattern. Merges are spelled in the older way."""
    tokenizer = byte_level(None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    train(tokenizer, texts, 420)
    saved = json.loads(tokenizer.to_str())
    saved["model"]["merges"] = [" ".join(pair) for pair in saved["model"]["merges"]]
    return saved


def cases(tokenizer):
    """A key is left out where it would repeat another: ids_with_special `ids`, decoded texts the text before."""
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        with_special = tokenizer.encode(text).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        without_special = tokenizer.decode(ids, skip_special_tokens=True)
        if with_special != ids:
            case["ids_with_special"] = with_special
        if decoded != text:
            case["decoded"] = decoded
        if without_special != decoded:
            case["decoded_without_special"] = without_special
        yield case


def main():
    HERE.mkdir(exist_ok=True)
    text = training_text()
    (HERE / "train.txt").write_bytes(text.encode())
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    # These are compared with tools/text's trainer as they are, byte for byte.
    trained = {"gpt2": byte_level(None), "llama3": byte_level(LLAMA3), "qwen": byte_level(QWEN, normalizers.NFC())}
    for name, tokenizer in trained.items():
        train(tokenizer, [text], 600, **alphabet).save(str(HERE / f"trained_{name}.json"))
    lines = train(byte_level(None), text.splitlines(keepends=True), 500, min_frequency=3, **alphabet)
    lines.save(str(HERE / "trained_lines.json"))

    trained["llama3"].model.ignore_merges = True
    trained["llama3"].post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)])
    styles = dict(trained, llama2=llama2([text]), metaspace=metaspace([text]))
    results = {}
    for name, tokenizer in styles.items():
        tokenizer.add_tokens(ADDED)
        tokenizer.save(str(HERE / f"{name}.json"), pretty=False)
        results[name] = list(cases(tokenizer))
    saved = digits([text])
    (HERE / "digits.json").write_text(json.dumps(saved, ensure_ascii=False))
    results["digits"] = list(cases(Tokenizer.from_file(str(HERE / "digits.json"))))
    (HERE / "cases.json").write_text(json.dumps(results, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
