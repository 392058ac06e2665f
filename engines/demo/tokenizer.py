"""The demo's tokenizer: a small byte-level BPE with Qwen's special tokens, and the chat template.

All 256 bytes are in the vocabulary, so any text round trips. Merges are learned from the demo's own questions
and answers and from a short list of common words; the class is transformers' own Qwen2Tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from engines.demo import draw
from engines.demo.words import CHINESE, ENGLISH, LANGUAGES

VOCABULARY = 2048  # upper limit, special tokens included; the corpus runs out of merges a little earlier
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# One turn is: <|im_start|>role, newline, content, <|im_end|>, newline. Media parts become one placeholder
# each, which the processor repeats to the number of visual tokens. A clip's placeholder stands bare, because
# the processor writes <|vision_start|> and <|vision_end|> around every frame pair itself. There is no default
# system prompt.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- else -%}
        {%- for part in message.content -%}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type == 'video' or 'video' in part -%}
                {{- '<|video_pad|>' -}}
            {%- elif 'text' in part -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

_COMMON = """
the of and to in is it you that he was for on are with as his they be at one have this from or had by hot but
some what there we can out other were all your when up use word how said an each she which do their time if
will way about many then them would write like so these her long make thing see him two has look more day
could go come did my sound no most number who over know water than call first people may down side been now
find any new work part take get place made live where after back little only round man year came show every
good me give our under name very through just form much great think say help low line before turn cause same
mean differ move right boy old too does tell sentence set three want air well also play small end put home
read hand port large spell add even land here must big high such follow act why ask men change went light kind
off need house picture try us again animal point mother world near build self earth father head stand own page
should country found answer school grow study still learn plant cover food sun four thought let keep eye never
last door between city tree cross since hard start might story saw far sea draw left late run don't while
press close night real life few stop image video photo describe text sign color colour shape object frame
second seconds person car street table chair book red green blue white black yellow please thanks yes
"""
_COMMON_CHINESE = """
的 一 是 不 了 在 人 有 我 他 这 个 们 中 来 上 大 为 和 国 地 到 以 说 时 要 就 出 会 可 也 你 对 生 能 而 子
那 得 于 着 下 自 之 年 过 发 后 作 里 用 道 行 所 然 家 种 事 成 方 多 经 么 去 法 学 如 都 同 现 当 没 动 面
起 看 定 天 分 还 进 好 小 部 其 些 主 样 理 心 她 本 前 开 但 因 只 从 想 实 什么 多少 哪里 图片 视频 描述
颜色 形状 物体 数量 位置 方向 移动 牌子 写着 读出 列出 左边 右边 上方 下方 请 请问 图中 有没有 往 走 吗 哪 秒
字
"""


def _corpus() -> Iterator[str]:
    """Texts to learn merges from. Every Chinese word is a text of its own, so that no merge crosses words."""
    names = [*draw.COLOURS, *draw.SHAPES, "bar", "object", "yes", "no", "sign", "image", "objects"]
    places = [w for w in CHINESE.words if w not in names]
    for _ in range(200):  # names at the start of an answer (no space before) and inside a sentence
        for name in names:
            yield name
            yield f"the {name} {name}"
        yield from (part for place in places for part in (place, f" {place}"))
        yield from CHINESE.words.values()
    for _ in range(50):
        for language in LANGUAGES:
            for phrasings in language.templates.values():
                for text in phrasings if language is ENGLISH else ():
                    for event in ("appear", "disappear"):
                        yield text.format(a="a", what="red circle", other="blue square", colour="red", event=event)
        yield from (ENGLISH.describe(things, "red circle", "A", 3) for things in (1, 2))
        yield from ("user\n", "assistant\n", "system\n", "<0.5 seconds>")
    for _ in range(20):
        yield from _COMMON_CHINESE.split()
        yield from "、，。？！：；（）“”…·《》"
    for _ in range(10):
        for word in _COMMON.split():
            yield from (f" {word}", word, word.capitalize())


def build_tokenizer() -> Qwen2Tokenizer:
    """Learn the merges and wrap them in transformers' class. Takes about a second and is deterministic."""
    empty = Qwen2Tokenizer(vocab={}, merges=[])
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.NFC()
    learner.pre_tokenizer = empty.backend_tokenizer.pre_tokenizer
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(_corpus(), trainer)
    state = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=state["vocab"],
        merges=[tuple(merge) for merge in state["merges"]],
        unk_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=32768,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
