"""The look of pictures: provenance, no leak into matplotlib's settings, small files, alternative text, units."""

from __future__ import annotations

import io

import matplotlib
import pytest
from PIL import Image

from course_utils import plots


def _contrast_on_white(colour: str) -> float:
    """Return the contrast ratio of WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 1.05 / (luminance + 0.05)


def _curves():
    fig, ax = plots.new("Curves", "size", "GB/s", log="x")
    for colour, provenance in zip(plots.PALETTE, plots.PROVENANCE, strict=False):
        plots.line(ax, [1, 10, 100], [1, 2, 3], "T4", provenance, color=colour)
    plots.legend(ax)
    return fig, ax


def test_provenance_has_five_different_lines_words_and_hatches():
    _, ax = _curves()
    assert [drawn.get_linestyle() for drawn in ax.lines] == ["-", "--", ":", "-.", "--"]  # the last has its own dashes
    assert len({str(drawn._dash_pattern) for drawn in ax.lines}) == 5
    assert [drawn.get_label() for drawn in ax.lines] == [
        "T4, live", "T4, recorded", "T4, predicted", "T4, simulated", "T4, published",
    ]  # fmt: skip
    assert len({plots.hatch(provenance) for provenance in plots.PROVENANCE}) == 5


def test_settings_of_the_reader_do_not_change_our_pictures():
    ours = plots.png(_curves()[0])
    with matplotlib.rc_context({"font.size": 20, "xtick.labelsize": 30, "axes.grid": False, "figure.dpi": 40}):
        assert plots.png(_curves()[0]) == ours


def test_a_picture_is_small_shows_itself_once_and_is_the_same_each_time():
    fig, _ = _curves()
    first = plots.png(fig)
    assert first == plots.png(fig) and len(first) < 30_000
    picture = Image.open(io.BytesIO(first))
    assert picture.size == (1152, 544) and picture.getpixel((0, 0)) == picture.getpixel((1151, 543))
    fig, _ = _curves()
    data, metadata = fig._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"} and data["text/plain"] == "Picture(Curves)"
    assert metadata == {"image/png": {"width": 720, "height": 340}}
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []


def test_html_carries_the_picture_and_its_escaped_text():
    fig, _ = _curves()
    shown = plots.to_html(fig, 'T4 & "others" <fast>')
    assert shown.startswith('<img src="data:image/png;base64,') and shown.endswith(">")
    assert 'alt="T4 &amp; &quot;others&quot; &lt;fast&gt;"' in shown
    for alt in ("", "  ", None):
        with pytest.raises(ValueError, match="alt was"):
            plots.to_html(fig, alt)


@pytest.mark.parametrize("colour", [*plots.PALETTE, plots.INK, plots.MUTED])
def test_colours_have_contrast_on_white(colour):
    assert _contrast_on_white(colour) >= (4.5 if colour in (plots.INK, plots.MUTED) else 3)
    assert _contrast_on_white("#f0e442") < 3  # yellow


@pytest.mark.parametrize(("write", "values"), [
    (plots.seconds_text, {0: "0 s", 3e-9: "3.00 ns", 9.99e-4: "999 µs", 1e-3: "1.00 ms", 0.02: "20.0 ms", 2: "2.00 s",
                          0.99999: "1.00 s", float("inf"): "unknown"}),
    (plots.bytes_text, {0: "0 B", 512: "512 B", 1024: "1 KiB", 1536: "1.50 KiB", 28e9: "26.1 GiB", 2**40: "1 TiB"}),
    (plots.count_text, {350e6: "350 M", 7e9: "7 B", 1.5e9: "1.5 B", 12_000: "12,000"}),
])  # fmt: skip
def test_times_sizes_and_counts_have_three_digits_and_a_unit(write, values):
    assert {value: write(value) for value in values} == values


def test_columns_share_one_picture():
    fig, (left, right) = plots.new("Two", columns=2, widths=(1, 2))
    assert fig.axes == [left, right] and left.get_title(loc="left") == "Two"
    _, axes = plots.new(("One", "Two"), columns=2)
    assert [ax.get_title(loc="left") for ax in axes] == ["One", "Two"]


@pytest.mark.parametrize(("call", "phrase"), [
    (lambda: plots.seconds_text(None), "seconds must be a number, not None"),
    (lambda: plots.bytes_text("x"), "n_bytes must be a number, not 'x'"),
    (lambda: plots.count_text(None), "n must be a number, not None"),
    (lambda: plots.hatch(["x"]), "provenance was .*; it may be plots.LIVE"),
    (lambda: plots.label("T4", "guessed"), "provenance was 'guessed'"),
])  # fmt: skip
def test_what_is_no_number_or_provenance_is_named(call, phrase):
    with pytest.raises((TypeError, ValueError), match=phrase):
        call()


def test_logarithmic_axes_have_plain_numbers_and_a_power_beyond_them():
    _, ax = plots.new(log="xy")
    ax.plot([0.01, 1e6], [1, 1e3])
    written = {value: ax.xaxis.get_major_formatter()(value, 0) for value in (0.01, 1.0, 1e3, 1e7)}
    assert written[0.01] == "0.01" and written[1.0] == "1" and written[1e3] == "1,000" and "10^{7}" in written[1e7]
