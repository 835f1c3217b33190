"""Explorers: a pure function becomes something to play with.

An explorer is a pure function from parameters to a frozen dataclass of numbers, a function that draws those numbers,
and one control for each parameter. In JupyterLab and Colab it shows controls and a picture; where no kernel runs, the
picture for the default parameters; in plain text one stable line. `transfer` shows how to write one.
"""

import functools
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils import arguments, plots
from gpu_course import fields, look

__all__ = ["Choice", "Explorer", "Slider", "Switch"]

_LONG = 24  # letters, more than which a control of the usual width cannot show
_WIDTH = "864px"  # of a picture: letters of 6.5 points are then 11 pixels high
# A picture is drawn on white; in a dark page JupyterLab turns light into dark and leaves the hues.
_DARK = "<style>[data-jp-theme-light='false'] .widget-image{filter:invert(.92) hue-rotate(180deg)}</style>"

# ipywidgets gives the handle of a slider no name, and its index for a value: take what stands beside it.
_NAMES = """
const name = () => document.querySelectorAll(".widget-slider").forEach(slider => {
    const handle = slider.querySelector(".noUi-handle"), readout = slider.querySelector(".widget-readout");
    if (!handle || !readout || handle.ariaLabel) return;
    handle.ariaLabel = slider.querySelector(".widget-label").innerText;
    const say = () => { handle.setAttribute("aria-valuetext", readout.innerText); };
    new MutationObserver(say).observe(readout, {childList: true, characterData: true, subtree: true});
    say();
});
[0, 500, 2000].forEach(ms => setTimeout(name, ms));  // until what is shown has come
"""


def _text(value: Any) -> str:
    """Return a value as a control shows it: thousands apart, no zeros behind the point."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Choice:
    """A control that takes one of a few unordered values, each shown by `text`.

    `instead_of` names controls that are shown only while this one has its first value: its others stand for theirs.
    """

    name: str
    label: str
    values: Sequence[Any]
    default: Any
    text: Callable[[Any], str] = _text
    instead_of: tuple[str, ...] = ()

    def widget(self) -> Any:
        """Return the ipywidgets control."""
        import ipywidgets

        looks = self._looks()
        longest = max(len(text) for text, _ in looks["options"])
        if longest > _LONG:
            looks["layout"] = {"width": f"{14 + 0.6 * longest:.0f}em", "max_width": "100%"}
        return ipywidgets.Dropdown(**looks)

    def _looks(self) -> dict[str, Any]:
        options = [(self.text(value), value) for value in self.values]  # the index: as a value, None would mean nothing
        same = lambda a, b: a is b or a == b  # noqa: E731  # NaN is a value too
        return {"options": options, "index": self.values.index(self.default), "equals": same, **_looks(self.label)}

    def checked(self, given: Any) -> Any:
        """Return `given`, which must be one of the values."""
        return arguments.one_of(self.name, given, self.values)


@dataclass(frozen=True)
class Slider(Choice):
    """A control over an ordered list of numbers, each shown by `text`."""

    def widget(self) -> Any:
        """Return the ipywidgets control."""
        import ipywidgets

        return ipywidgets.SelectionSlider(continuous_update=False, **self._looks())

    def checked(self, given: Any) -> Any:
        """Return `given`, a number from the first value to the last, whole where these are; it need not be a value."""
        first, last = self.values[0], self.values[-1]
        (arguments.whole if isinstance(first, int) else arguments.number)(self.name, given, least=first)
        if given > last:
            raise ValueError(f"{self.name} must be at most {last}, not {given!r}")
        return given


@dataclass(frozen=True)
class Switch:
    """A control that is on or off."""

    name: str
    label: str
    default: bool = False
    values, instead_of = (False, True), ()
    checked = Choice.checked
    text = staticmethod({False: "off", True: "on"}.get)

    def widget(self) -> Any:
        """Return the ipywidgets control."""
        import ipywidgets

        return ipywidgets.Checkbox(value=self.default, **_looks(self.label))


def _looks(label: str) -> dict[str, Any]:
    """Return what makes all controls one column of labels and one of handles."""
    return {"description": label, "style": {"description_width": "10.5em"}, "layout": {"width": "28em"}}


class Explorer:
    """Controls over a pure function, with its picture. Make it the last expression of a cell."""

    def __init__(
        self,
        title: str,
        function: Callable[..., Any],
        draw: Callable[[Any], Any],
        describe: Callable[[Any], str],
        controls: Sequence[Choice | Switch],
        fixed: Mapping[str, Any] | None = None,
        offered: Callable[[Mapping[str, Any]], Mapping[str, int]] = lambda chosen: {},
    ) -> None:
        """`function` takes the controls' names and `fixed` as keywords; `draw` and `describe` take its result.

        `draw` returns a matplotlib Figure, `describe` a sentence or two: caption and alternative text. `offered` takes
        what is chosen and returns how many of its values, from the first, a control offers then: where it is one, the
        control is hidden. Raises ValueError where a default is none of its control's values.
        """
        for control in controls:
            arguments.one_of(control.name, control.default, control.values)
        self.title, self.controls = title, tuple(controls)
        self._function, self._draw, self._describe, self._fixed = function, draw, describe, dict(fixed or {})
        self.offered, self._offering = offered, False
        self._widget: Any = None
        self.boxes: dict[str, Any] = {}  # the controls' widgets by name, once there is a widget

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the parameters that the static picture shows."""
        return {control.name: control.default for control in self.controls}

    def compute(self, **parameters: Any) -> Any:
        """Return the function's result for the defaults, changed by `parameters`.

        Raises TypeError or ValueError that names what is no parameter or lies outside what its control can give; the
        function itself does not check that again.
        """
        controls = {control.name: control for control in self.controls}
        for name, given in parameters.items():
            if name not in controls:
                raise ValueError(f"{name!r} is no parameter of this explorer; it has {', '.join(controls)}")
            controls[name].checked(given)
        return self._function(**{**self.defaults, **parameters}, **self._fixed)

    def caption(self, **parameters: Any) -> str:
        """Return what the picture says, in words."""
        return self._describe(self.compute(**parameters))

    def figure(self, **parameters: Any) -> Any:
        """Return the picture for the defaults, changed by `parameters`, as a matplotlib Figure."""
        return self._draw(self.compute(**parameters))

    def __repr__(self) -> str:
        return f"Explorer({self.title})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        page = f"{self._first[2]}<p>{html.escape(self._first[1])}</p>"  # which needs no kernel
        return {"text/plain": repr(self), "text/html": page, **fields.view(self.widget())}

    @functools.cached_property
    def _first(self) -> tuple[bytes, str, str]:
        """Picture and caption of the defaults, and the picture as HTML: drawn once for the page and the widget."""
        result = self.compute()
        figure, words = self._draw(result), self._describe(result)
        picture = plots.png(figure)
        return picture, words, plots.to_html(figure, words, picture)

    def _shown(self, chosen: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return picture and caption of what the controls say."""
        if chosen == self.defaults:
            return self._first[:2]
        result = self._function(**chosen, **self._fixed)
        return plots.png(self._draw(result)), self._describe(result)

    def widget(self) -> Any:
        """Return the widget: the controls above the picture and its caption; the same one each time."""
        if self._widget is None:
            self._widget = self._build()
        return self._widget

    def _build(self) -> Any:
        import ipywidgets

        self.boxes = {control.name: control.widget() for control in self.controls}
        picture = ipywidgets.Image(format="png", layout={"max_width": "100%", "width": _WIDTH})
        words = ipywidgets.HTML(layout={"max_width": _WIDTH})

        def update(change: object = None) -> None:
            if self._offering:
                return
            for control in self.controls:
                counts = self.boxes[control.name].value == control.values[0]
                for name in control.instead_of:
                    self.boxes[name].layout.display = None if counts else "none"
            self._offer()
            try:
                picture.value, said = self._shown({name: box.value for name, box in self.boxes.items()})
                words.value = f'{look.FOCUS}{_DARK}<div style="line-height: 1.5">{html.escape(said)}</div>'
                picture.layout.display = None
            except Exception as error:  # shown in place: a widget's callback has no cell to fail in
                picture.layout.display = "none"  # the picture of another setting would be wrong
                words.value = f"<b>This setting failed:</b> {html.escape(f'{type(error).__name__}: {error}')}"

        for box in self.boxes.values():
            box.observe(update, names="value")
        update()
        widest = max(float(box.layout.width.removesuffix("em")) for box in self.boxes.values())
        columns = f"repeat(auto-fit, minmax(min({widest:g}em, 100%), 1fr))"
        grid = {"grid_template_columns": columns, "max_width": "57em", "width": "100%"}
        script = {"output_type": "display_data", "data": {"application/javascript": _NAMES}, "metadata": {}}
        names = ipywidgets.Output(outputs=(script,), layout={"display": "none"})
        return ipywidgets.VBox([names, ipywidgets.GridBox([*self.boxes.values()], layout=grid), picture, words])

    def _offer(self) -> None:
        """Restrict each control to the values that the others allow; a value beyond them becomes the last allowed."""
        self._offering = True  # new options change values, each of which would draw
        try:
            for name, count in self.offered({name: box.value for name, box in self.boxes.items()}).items():
                box, (control,) = self.boxes[name], [control for control in self.controls if control.name == name]
                if len(box.options) != count:
                    index = min(box.index, count - 1)
                    box.options = [(control.text(value), value) for value in control.values[:count]]
                    box.index = index
                box.layout.display = None if count > 1 else "none"
        finally:
            self._offering = False
