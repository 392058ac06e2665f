"""The words of questions and answers in both languages. One table a language; the keys are the English
words.
"""

from __future__ import annotations

from dataclasses import dataclass

# Names of the ninths of a picture, row by row.
PLACES = (
    ("top left", "top", "top right"),
    ("middle left", "center", "middle right"),
    ("bottom left", "bottom", "bottom right"),
)


@dataclass(frozen=True)
class Language:
    """`templates`: per category, phrasings with {what}, {other}, {colour} to fill in. `words`: key to
    word.
    """

    name: str
    words: dict[str, str]
    templates: dict[str, tuple[str, ...]]
    joint: str  # between the colour and the noun
    comma: str  # between the items of a list
    seconds: str  # a point in time, whole seconds filled in
    # The parts of a one-sentence description.
    one_thing: str
    several_things: str
    with_sign: str
    with_chart: str
    full_stop: str

    def word(self, key: str) -> str:
        return self.words.get(key, key)

    def named(self, colour: str | None, shape: str | None) -> str:
        """ "red circle", "red object", "circle" or "object", whichever is given."""
        noun = self.word(shape or "object")
        return f"{self.word(colour)}{self.joint}{noun}" if colour else noun

    def answer(self, key: str, category: str) -> str:
        """An answer of a category. Motion to the left is another word than the left side where a language has one."""
        return (category == "motion" and self.words.get(f"{key}ward")) or self.word(key)

    def describe(self, things: int, leftmost: str, sign: str | None, bars: int | None) -> str:
        """One sentence on a still: how many things, the leftmost one, what a sign says, how many bars a chart has."""
        parts = [(self.one_thing if things == 1 else self.several_things).format(things, article(leftmost), leftmost)]
        parts += [self.with_sign.format(sign)] if sign else []
        parts += [self.with_chart.format(bars)] if bars else []
        return "".join(parts) + self.full_stop


def article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


ENGLISH = Language(
    name="en",
    words={},
    joint=" ",
    comma=", ",
    seconds="{} s",
    one_thing="There is {0} object, {1} {2}",
    several_things="There are {0} objects, the leftmost is {1} {2}",
    with_sign=", and a sign says {}",
    with_chart=", and a chart has {} bars",
    full_stop=".",
    templates={
        "colour": (
            "What color is the {what}?",
            "Which color does the {what} have?",
            "The {what} has what color?",
        ),
        "shape": (
            "What shape is the {what}?",
            "Which shape does the {what} have?",
            "The {what} has what shape?",
        ),
        "count": ("How many objects are there?", "Count the objects.", "What is the number of objects?"),
        "count_colour": (
            "How many {colour} objects are there?",
            "Count the {colour} objects.",
            "What is the number of {colour} objects?",
        ),
        "position": ("Where is the {what}?", "In which part of the image is the {what}?"),
        "relation": (
            "Where is the {what} relative to the {other}?",
            "On which side of the {other} is the {what}?",
        ),
        "existence": ("Is there {a} {what}?", "Does the image show {a} {what}?", "Can you see {a} {what}?"),
        "reading": ("What does the sign say?", "Read the sign.", "What is written on the sign?"),
        "list": (
            "List all objects.",
            "Which objects are there, from left to right?",
            "Name every object in the image.",
        ),
        "chart": (
            "What is the value of the {colour} bar?",
            "How high is the {colour} bar?",
            "Which value does the {colour} bar have?",
        ),
        "describe": ("Describe the image.", "Describe the image in one sentence.", "What does the image show?"),
        "motion": ("Which way does the {what} move?", "In which direction does the {what} go?"),
        "when": ("When does the {what} {event}?", "At which second does the {what} {event}?"),
        "order": (
            "Which {event}s first, the {what} or the {other}?",
            "What {event}s first: the {what} or the {other}?",
        ),
    },
)

CHINESE = Language(
    name="zh",
    words={
        "red": "红色",
        "orange": "橙色",
        "yellow": "黄色",
        "green": "绿色",
        "cyan": "青色",
        "blue": "蓝色",
        "purple": "紫色",
        "pink": "粉色",
        "circle": "圆形",
        "square": "方形",
        "triangle": "三角形",
        "diamond": "菱形",
        "star": "星形",
        "cross": "十字",
        "heart": "心形",
        "arrow": "箭头",
        "bar": "柱",
        "object": "物体",
        "yes": "是",
        "no": "否",
        "left": "左边",
        "right": "右边",
        "above": "上方",
        "below": "下方",
        "appear": "出现",
        "disappear": "消失",
        "up": "向上",
        "down": "向下",
        "leftward": "向左",
        "rightward": "向右",
        "top left": "左上",
        "top": "上",
        "top right": "右上",
        "middle left": "左",
        "center": "中间",
        "middle right": "右",
        "bottom left": "左下",
        "bottom": "下",
        "bottom right": "右下",
    },
    joint="",
    comma="、",
    seconds="{}秒",
    one_thing="图中有{0}个物体：{2}",
    several_things="图中有{0}个物体，最左边是{2}",
    with_sign="，牌子上写着{}",
    with_chart="，图表有{}个柱",
    full_stop="。",
    templates={
        "colour": ("{what}是什么颜色？", "请问{what}的颜色？"),
        "shape": ("{what}是什么形状？", "请问{what}的形状？"),
        "count": ("有多少个物体？", "物体的数量是多少？"),
        "count_colour": ("有多少个{colour}物体？", "{colour}物体的数量是多少？"),
        "position": ("{what}在哪里？", "{what}在图中什么位置？"),
        "relation": ("{what}在{other}的哪一边？",),
        "existence": ("有没有{what}？", "图中有{what}吗？"),
        "reading": ("牌子上写着什么？", "请读出牌子上的字。"),
        "list": ("列出所有物体。", "从左到右有哪些物体？"),
        "chart": ("{colour}柱的数值是多少？", "{colour}柱有多高？"),
        "describe": ("描述这张图片。", "用一句话描述图片。"),
        "motion": ("{what}往哪个方向移动？", "{what}向哪里走？"),
        "when": ("{what}什么时候{event}？", "{what}在第几秒{event}？"),
        "order": ("{what}和{other}哪个先{event}？",),
    },
)

LANGUAGES = (ENGLISH, CHINESE)
CATEGORIES = tuple(ENGLISH.templates)
