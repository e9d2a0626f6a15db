"""HTTP: thin routers over ``wattcast.app.services``.

Validators of requests are built when they are first used, for the command line needs few of them.
FastAPI wants those of a route when it is declared: they are built here, before any is.
"""

from importlib import import_module
from pkgutil import iter_modules

from wattcast.predictor import messages


def _build(kind: type[messages.Message | messages.Answer]) -> None:
    for each in kind.__subclasses__():
        each.model_config["defer_build"] = False
        each.model_rebuild()
        _build(each)


for _found in iter_modules(messages.__path__):
    import_module(f"{messages.__name__}.{_found.name}")
_build(messages.Message)
_build(messages.Answer)
