"""``@wattcast.estimate``: a Triton kernel whose launches predict instead of running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wattcast.app.python.answers import Prediction
from wattcast.app.python.predictors import predictor
from wattcast.predictor import rank, triton
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.rank import RankAnswer
from wattcast.predictor.predict import predict_one


class Estimated:
    """A kernel under ``@wattcast.estimate``. ``fn`` is the kernel itself, ``estimates`` the answers
    in the order of launches, ``rankings`` those of launches with several configurations."""

    def __init__(self, kernel: Any, gpu: str, registry: bool, options: Mapping[str, Any]) -> None:
        self.fn = kernel
        self.estimates: list[Prediction] = []
        self.rankings: list[RankAnswer] = []
        self._gpu, self._registry, self._options = gpu, registry, dict(options)

    def __getitem__(self, grid: triton.Grid) -> Callable[..., Prediction]:
        """``kernel[grid](...)``: the prediction of the launch."""

        def launch(*arguments: Any, **keywords: Any) -> Prediction:
            return self._launch(grid, arguments, keywords)

        return launch

    def __call__(self, *arguments: Any, **keywords: Any) -> Prediction:
        """Refused, as Triton does."""
        raise RuntimeError("a Triton kernel is launched with a grid: kernel[grid](...)")

    def _launch(
        self, grid: triton.Grid, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Prediction:
        opened = predictor(self._registry)
        asked = []
        for configuration, body in triton.launched(
            self.fn, opened.gpus.load(self._gpu), grid, arguments, keywords
        ):
            if isinstance(body, Mapping):
                body = {**self._options, "gpu": self._gpu, **body}
            asked.append((configuration, body))
        at = 0
        if len(asked) > 1:
            found = rank.ranked(opened, asked, "time")
            self.rankings.append(found)
            best = found.configurations[0].configuration
            at = next(n for n, (one, _) in enumerate(asked) if dict(one.parameters) == best)
        configuration, body = asked[at]
        if not isinstance(body, Mapping):
            raise body
        request = PredictRequest.model_validate(body)
        answer = Prediction.of(predict_one(opened, request), request, self._registry)
        answer = answer.model_copy(update={"configuration": dict(configuration.parameters)})
        self.estimates.append(answer)
        return answer
