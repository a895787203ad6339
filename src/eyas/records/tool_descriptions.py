"""`tools` of a record: descriptions for the chat template, in the forms in which data keeps them."""

from typing import Any

from eyas.records.json_lines import json_of


def tools_of(tools: Any) -> Any:
    """Tool descriptions; some files keep them, or each of them, as a JSON string (SpecForge#738). None for none.

    Raises:
        ValueError: a string that is no JSON; the text says so.
    """
    if isinstance(tools, str):
        tools = json_in(tools, "`tools`")
    if isinstance(tools, list):
        return [json_in(tool, "a tool") if isinstance(tool, str) else tool for tool in tools] or None
    return tools or None


def json_in(text: str, what: str) -> Any:
    """The value that `text`, a field that may hold JSON as a string, stands for; ValueError says `what` is none."""
    try:
        return json_of(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is a string that is no JSON ({type(error).__name__})") from None
