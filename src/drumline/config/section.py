"""What every section of a run's settings is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drumline.errors import ConfigError

Fraction = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Base of all sections: frozen, and an unknown key is an error.

    Made by name or by model_validate, it raises ConfigError that lists every mistake, as a recipe's are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    if not TYPE_CHECKING:  # a type checker is to see the fields as arguments, as it does without these two

        def __init__(self, /, **values: Any) -> None:
            __tracebackhide__ = True
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _refused(error, values, type(self)) from None

        # So that a section inside another one is not made by it, and mistakes in it keep their whole path.
        __init__.__pydantic_base_init__ = True

        @classmethod
        def model_validate(cls, obj: Any, **options: Any) -> Self:
            """As pydantic's, but for the error."""
            try:
                return super().model_validate(obj, **options)
            except ValidationError as error:
                raise _refused(error, obj, cls) from None


def _refused(error: ValidationError, values: Any, kind: type[Section]) -> ConfigError:
    # Here, since these look at sections themselves.
    from drumline.config.explain import explain
    from drumline.config.problem import refuse, shown
    from drumline.config.source import from_mapping

    if not isinstance(values, Mapping):
        return ConfigError(f"{kind.__name__} wants its keys and values, not {shown(values)}", "hand it a mapping")
    return refuse(explain(error, from_mapping(values, kind.__name__), kind))
