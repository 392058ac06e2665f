"""The words of questions and answers in both languages. One table a language; the keys are the English
words.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    def word(self, key: str) -> str:
        return self.words.get(key, key)

    def named(self, colour: str | None, shape: str | None) -> str:
        """ "red circle", "red object", "circle" or "object", whichever is given."""
        noun = self.word(shape or "object")
        return f"{self.word(colour)}{self.joint}{noun}" if colour else noun


ENGLISH = Language(
    name="en",
    words={},
    joint=" ",
    comma=", ",
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
        "existence": ("Is there a {what}?", "Does the image show a {what}?", "Can you see a {what}?"),
        "reading": ("What does the sign say?", "Read the sign.", "What is written on the sign?"),
        "list": (
            "List all objects.",
            "Which objects are there, from left to right?",
            "Name every object in the image.",
        ),
        "motion": ("Which way does the {what} move?", "In which direction does the {what} go?"),
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
        "object": "物体",
        "yes": "是",
        "no": "否",
        "left": "左边",
        "right": "右边",
        "above": "上方",
        "below": "下方",
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
        "motion": ("{what}往哪个方向移动？", "{what}向哪里走？"),
    },
)

LANGUAGES = (ENGLISH, CHINESE)
CATEGORIES = tuple(ENGLISH.templates)
