import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.report import svg
from eyas.report.page import (
    Chart,
    Details,
    LegendKey,
    Page,
    Paragraph,
    Section,
    Table,
    Tokens,
    TokenSpan,
    Verdict,
    render,
)

HOSTILE = "</span><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def page_with(text: str) -> str:
    tokens = Tokens(
        prompt=text,
        tokens=[TokenSpan(text=text, css="d1", title=text)],
        legend=[LegendKey(css="d1", text=text)],
        caption=text,
    )
    chart = Chart(svg=svg.bar_chart([text], [(text, [0.5])], title=text, y_label=text, y_max=1.0), caption=text)
    table = Table(head=[text], rows=[[text, 1.5]], caption=text)
    blocks = [tokens, chart, table, Details(summary=text, text=text), Paragraph(text=text)]
    section = Section(id="x", title=text, lead=text, blocks=blocks)
    return render(Page(title=text, verdicts=[Verdict(text=text)], sections=[section]))


@pytest.mark.parametrize("hostile", [HOSTILE, "{{ 7 * 7 }}{% raw %}", "]]><svg onload=alert(1)>"])
def test_generated_text_never_becomes_markup(hostile: str):
    shown = page_with(hostile)

    assert "<script" not in shown
    assert "<img" not in shown
    assert "onload=alert(1)>" not in shown.replace("&gt;", "")
    assert "{{ 7 * 7 }}" in shown or "7 * 7" not in hostile


@given(st.text(max_size=60))
def test_any_text_keeps_the_page_well_formed(text: str):
    shown = page_with(text)
    opened = re.findall(r"<(section|figure|table|svg|main|header)\b", shown)
    closed = re.findall(r"</(section|figure|table|svg|main|header)>", shown)
    assert sorted(opened) == sorted(closed)


def test_the_page_asks_for_nothing_from_the_network():
    shown = page_with("plain")

    assert not re.search(r"(src|href)\s*=|url\(|@import|http-equiv=\"refresh", shown)
    assert "default-src 'none'" in shown


def test_a_chart_without_numbers_says_so_instead_of_drawing():
    drawn = svg.line_chart([svg.Line(label="a", points=[(0, float("nan"))])], title="Loss", x_label="", y_label="")
    assert drawn == '<p class="none">Loss: nothing was measured.</p>'


def test_bars_grow_with_their_values():
    drawn = svg.bar_chart(["1", "2"], [("mine", [1.0, 0.25])], title="t", y_label="y", y_max=1.0)
    first, second = [float(h) for h in re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)]
    assert first == pytest.approx(4 * second, rel=0.01)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_ticks_cover_the_range_and_are_few(low: float, span: float):
    ticks = svg.nice_ticks(low, low + span)
    assert ticks[0] <= low + 1e-6
    assert ticks[-1] >= (low + span) * (1 - 1e-6)
    assert 2 <= len(ticks) <= 9
