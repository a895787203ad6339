import re
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.report import svg
from eyas.report.page import (
    MOST_BYTES,
    Chart,
    Headline,
    Page,
    Section,
    Table,
    Text,
    Tokens,
    TokenSpan,
    render,
)

HOSTILE = "</span><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def page_with(text: str) -> str:
    tokens = Tokens(
        prompt=text,
        tokens=[TokenSpan(text=text, css="d1", title=text)],
        legend=[("d1", text)],
        caption=text,
    )
    chart = Chart(svg=svg.bar_chart([text], [(text, [0.5])], title=text, y_label=text, y_max=1.0), caption=text)
    table = Table(head=[text], rows=[[text, 1.5]], caption=text)
    blocks = [tokens, chart, table, Text(summary=text, text=text), Text(text=text)]
    section = Section(id="x", title=text, source=text, lead=text, blocks=blocks)
    return render(
        Page(title=text, headlines=[Headline(figure=text, sentence=text, draft=text)], warning=text, sections=[section])
    )


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


def large(num: int, text: str) -> Page:
    """Every kind of block, `num` of each, with `num` parts of `text`."""
    tokens = [TokenSpan(text=text, css="d1", title="t")] * num
    lines = [svg.Line(label=text, points=[(float(i), float(i)) for i in range(num)])] * num
    ranges = [svg.Range(label=text, low=1.0, median=2.0, high=3.0)] * num
    spans = [svg.Span(label=text, start=0.0, end=1.0)] * num
    blocks = [
        Table(head=[text] * num, rows=[[text] * num] * num),
        Tokens(prompt=text, tokens=tokens, legend=[("d1", "t")] * num),
        Text(text=text * num, summary=text),
        Chart(svg=svg.line_chart(lines, title=text, x_label=text, y_label=text)),
        Chart(svg=svg.range_chart(ranges, title=text, x_label=text)),
        Chart(svg=svg.span_chart(spans, title=text, x_label=text)),
        Chart(svg=svg.bar_chart([text] * num, [(text, [0.5] * num)] * num, title=text, y_label=text, y_max=1.0)),
    ]
    sections = [
        Section(id=f"s{i}", title=f"Section {i}", source=text, lead=text, blocks=blocks * 3) for i in range(num)
    ]
    return Page(title=text, headlines=[Headline(figure=text, sentence=text)] * num, warning=text, sections=sections)


@pytest.mark.parametrize(("num", "text"), [(200, "'\"&<>" * 400), (60, "x" * 100_000), (2000, "é")])
def test_a_page_stays_below_its_limit_whatever_it_is_given_and_says_what_is_left_out(num: int, text: str):
    page = large(min(num, 60), text)
    shown = render(page)
    assert len(shown.encode()) < MOST_BYTES + 20_000 < 1_000_000
    assert "The page would be too large with" in shown
    assert "<h2>Left out</h2>" in shown


def test_a_page_that_fits_is_shown_whole():
    shown = page_with("plain")
    assert "left out" not in shown
    assert "more characters" not in shown


def test_a_name_that_is_not_valid_utf_8_stays_a_name():
    assert "run\\udcff" in page_with("run\udcff")


def test_a_wide_interval_does_not_stretch_the_axis_and_its_end_is_written():
    rows = [svg.Range(label="K = 2", low=1.28, median=1.55, high=10.27, ceiling=1.6)]
    drawn = svg.range_chart(rows, title="t", x_label="x")
    ticks = [float(t) for t in re.findall(r'class="tick" x="[^"]*" y="[^"]*" text-anchor="\w+">([\d.]+)<', drawn)]
    assert max(ticks) <= 2.5
    assert "(1.28 … 10.27)" in drawn


def test_chart_text_is_at_least_ten_pixels_on_a_telephone():
    css = (files("eyas.report") / "page.css").read_text()
    narrow = css[css.index("@media (max-width: 460px)") :]
    size = re.search(r"svg text \{ font-size: (\d+)px", narrow)
    assert size is not None
    # 390 px less the page's and the card's padding and border
    scale = (390 - 2 * 12 - 2 * 14 - 2) / svg.WIDTH
    assert int(size[1]) * scale >= 10
