"""Failure whose cause is asked for."""

from dataclasses import dataclass, field

__all__ = ["Unknown"]


@dataclass(frozen=True)
class Unknown:
    """A failure whose cause is asked for.

    - `symptom`: what a person sees; `causes`: the choices, of which `cause` is the right one;
    - `seen`: what each instrument shows;
    - `against`: for each cause, what speaks against it where it is not the right one.
    """

    symptom: str
    causes: tuple[str, ...]
    seen: dict[str, str]
    against: dict[str, str] = field(repr=False)
    cause: str = field(repr=False)

    instruments = property(lambda self: tuple(self.seen), doc="What you can look at.")

    def __str__(self) -> str:
        causes = [f"  - {cause}" for cause in self.causes]
        return "\n".join([self.symptom, "You can look at: " + ", ".join(self.seen), "Is it one of these?", *causes])

    __repr__ = __str__

    def look(self, instrument: str) -> str:
        """Return what `instrument` shows; ValueError where there is none of this name."""
        if instrument not in self.seen:
            raise ValueError(f"instrument must be one of {list(self.seen)}, not {instrument!r}")
        return self.seen[instrument]

    def because(self, cause: str | None) -> str:
        """Return whether `cause` is the right one, and if not, what speaks against it; None: no answer yet."""
        if cause is None:
            return "No answer yet: look first, then name a cause."
        if cause not in self.causes:
            raise ValueError(f"cause must be one of {list(self.causes)}, not {cause!r}")
        return f"Yes: {cause}." if cause == self.cause else f"No: {self.against[cause]}"
