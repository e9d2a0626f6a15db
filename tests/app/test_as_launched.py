"""Arguments that nobody gives are those that the source itself passes where it launches."""

from __future__ import annotations

from pathlib import Path

import wattcast

SOURCE = """#ifndef ROUNDS
#define ROUNDS 100
#endif
template <typename T>
__global__ void turn(T *x, int n, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) for (int k = 0; k < rounds; k++) x[i] = x[i] * T(2) + T(k);
}
int main() {
  const int n = 1 << 16;
  float *x;
  cudaMalloc(&x, n * sizeof(float));
  turn<float><<<n / 256, 256>>>(x, n, ROUNDS);
}
"""


def asked(cuda: str = SOURCE, **more: object) -> wattcast.Prediction:
    return wattcast.predict(
        cuda=cuda, gpu="tesla-v100", grid=256, block=256, registry=False, **more
    )  # type: ignore[arg-type]


def passed(answer: wattcast.Prediction) -> list[str]:
    return [one.detail for one in answer.warnings if one.code == "argument_as_launched"]


def test_a_source_that_launches_itself_is_answered_as_if_its_values_were_given() -> None:
    found = asked()
    given = asked(arguments={"n": 1 << 16, "rounds": 100})
    assert found.time == given.time
    assert found.power == given.power
    assert not found.needs
    assert passed(found) == [
        "n (argument 1) is 65,536, as the source launches it",
        "rounds (argument 2) is 100, as the source launches it",
    ]
    lines = {w.source_line for w in found.warnings if w.code == "argument_as_launched"}
    assert lines == {13}


def test_what_is_given_counts() -> None:
    found = asked(arguments={"rounds": 7})
    assert found.time == asked(arguments={"n": 1 << 16, "rounds": 7}).time
    assert passed(found) == ["n (argument 1) is 65,536, as the source launches it"]


def test_a_macro_that_an_option_defines_is_not_the_source_s() -> None:
    found = asked(compiler_options=["-D ROUNDS=3"])
    assert [need.argument for need in found.needs] == ["rounds"]
    assert passed(found) == ["n (argument 1) is 65,536, as the source launches it"]


def test_what_it_does_not_tell_is_asked_for() -> None:
    found = asked(SOURCE.replace("n, ROUNDS", "n, argc").replace("main()", "main(int argc)"))
    assert [need.argument for need in found.needs] == ["rounds"]


def test_a_file_tells_it_too(tmp_path: Path) -> None:
    (tmp_path / "turn.cu").write_text(SOURCE)
    found = wattcast.predict(
        tmp_path / "turn.cu", gpu="tesla-v100", grid=256, block=256, registry=False
    )
    assert found.time == asked().time


WINDOW = """__global__ void window(float *x, int start, int end) {
  int i = start + blockIdx.x * blockDim.x + threadIdx.x;
  if (i < end) x[i] = x[i] * 2.0f;
}
"""


def test_work_begins_at_nothing_and_ends_with_the_threads_where_nobody_says() -> None:
    """Not behind its end, where no thread has anything to do."""
    found = asked(WINDOW)
    assert {n.argument: n.assumed for n in found.needs} == {"start": 0, "end": 65536}
    assert found.time == asked(WINDOW, arguments={"start": 0, "end": 65536}).time
