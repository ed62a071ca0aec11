"""What people ask first, with right answers: greetings, sums, capitals, small functions, recipes, letters."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from testbed.tools.models.texts.conversation import Conversation, with_system, written

_KINDS = {
    "talk": 4,
    "pair": 7,
    "story": 2,
    "long_story": 2,
    "recipe": 2,
    "letter": 2,
    "function": 6,
    "capital": 4,
    "sum": 3,
    "persona": 3,
    "shouted": 0.5,
}
_LANGUAGES = {"Python": 1, "JavaScript": 2}  # the place of their code behind a function's task
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def made_up_name(generator: random.Random) -> str:
    """Draw a name that nobody has, which can only be copied from where it was said."""
    syllables = [
        generator.choice(_CONSONANTS) + generator.choice(_VOWELS) for _ in range(generator.randint(2, 3))
    ]
    return ("".join(syllables) + generator.choice(["", "n", "r", "s", "l"])).capitalize()


def everyday(count: int, seed: int) -> list[Conversation]:
    """Draw conversations of everyday.yaml."""
    generator, data = random.Random(seed), written("everyday.yaml")
    kinds = generator.choices(list(_KINDS), list(_KINDS.values()), k=count)
    return with_system([_DRAWN[kind](generator, data) for kind in kinds], seed)


def _one_of(kind: str, generator: random.Random, data: Any) -> Conversation:
    """One of the ways to ask one of the questions of a kind, with one of its answers."""
    questions, answers = generator.choice(data[kind])
    return Conversation.asked(generator.choice(questions), generator.choice(answers))


def _story(generator: random.Random, data: Any) -> Conversation:
    stories = data["stories"]
    hero = generator.choice(stories["heroes"])
    asked, told = (generator.choice(stories[part]).format(hero=hero) for part in ("asks", "tales"))
    return Conversation.asked(asked, told)


def _long_story(generator: random.Random, data: Any) -> Conversation:
    stories = data["long_stories"]
    hero = generator.choice(stories["heroes"])
    middles = generator.sample(stories["middles"], 2)
    told = [generator.choice(stories["beginnings"]), *middles, generator.choice(stories["ends"])]
    return Conversation.asked(
        generator.choice(stories["asks"]).format(hero=hero), "\n\n".join(told).format(hero=hero)
    )


def _recipe(generator: random.Random, data: Any) -> Conversation:
    recipes = data["recipes"]
    dish, needed, steps = generator.choice(recipes["dishes"])
    listed = "\n".join(f"- {each}" for each in needed)
    told = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    return Conversation.asked(
        generator.choice(recipes["asks"]).format(dish=dish), f"You need:\n{listed}\n\n{told}"
    )


def _letter(generator: random.Random, data: Any) -> Conversation:
    letters = data["letters"]
    asked, person, topic, opening, body = (
        generator.choice(letters[part]) for part in ("asks", "people", "topics", "openings", "bodies")
    )
    told = f"Dear {person},\n\n{opening} {body}\n\nKind regards".format(topic=topic)
    return Conversation.asked(asked.format(person=person, topic=topic), told)


def _function(generator: random.Random, data: Any) -> Conversation:
    function, language = generator.choice(data["functions"]), generator.choice(list(_LANGUAGES))
    asked = generator.choice(data["function_asks"]).format(language=language, task=function[0])
    return Conversation.asked(asked, function[_LANGUAGES[language]])


def _capital(generator: random.Random, data: Any) -> Conversation:
    country, capital = generator.choice(list(data["capitals"].items()))
    asked = generator.choice(
        ["What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}."]
    )
    if generator.random() < 0.3:
        return Conversation.asked(asked.format(country), f"{capital}.").under("Answer with one word.")
    return Conversation.asked(asked.format(country), f"The capital of {country} is {capital}.")


def _sum(generator: random.Random, _: Any) -> Conversation:
    first, second = generator.randint(1, 20), generator.randint(1, 20)
    if generator.random() < 0.6:
        text, value = f"{first} + {second}", first + second
    else:
        first, second = max(first, second), min(first, second)
        text, value = f"{first} - {second}", first - second
    asked = generator.choice(["What is {}?", "How much is {}?", "Calculate {}.", "{}"]).format(text)
    return Conversation.asked(asked, f"{text} = {value}")


def _persona(generator: random.Random, data: Any) -> Conversation:
    name = generator.choice(data["personas"]) if generator.random() < 0.3 else made_up_name(generator)
    system = generator.choice(
        ["Your name is {}.", "You are {}, a friendly assistant.", "You are {}."]
    ).format(name)
    greeting = generator.choice(["Hello!", "Hi", "Hello", "Hey"])
    asked, told = generator.choice(
        [
            ("What is your name?", f"My name is {name}."),
            ("Who are you?", f"I am {name}. How can I help you?"),
            (greeting, "Hello! How can I help you today?"),
        ]
    )
    return Conversation.asked(asked, told).under(system)


def _shouted(generator: random.Random, data: Any) -> Conversation:
    questions, answers = generator.choice([*data["talk"], *data["pairs"]])
    system = generator.choice(["Answer in capital letters.", "Write everything in capital letters."])
    return Conversation.asked(generator.choice(questions), generator.choice(answers).upper()).under(system)


_DRAWN: dict[str, Callable[[random.Random, Any], Conversation]] = {
    "talk": partial(_one_of, "talk"),
    "pair": partial(_one_of, "pairs"),
    "story": _story,
    "long_story": _long_story,
    "recipe": _recipe,
    "letter": _letter,
    "function": _function,
    "capital": _capital,
    "sum": _sum,
    "persona": _persona,
    "shouted": _shouted,
}
