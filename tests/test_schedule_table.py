"""What --print_schedule lists and draws."""

import pytest

from t5jax import schedule_table, schedules
from t5jax.budget import Budget


def rows(*parts):
  """{position: (learning rate, length of the bar)} of the lines of a table."""
  lines = [line.split() for line in schedule_table.table(*parts).splitlines()[1:]]
  return {float(position.replace(",", "")): (float(rate), len("".join(bar)))
          for position, _, rate, *bar in lines}


def test_table_has_the_points_of_the_recipe():
  found = rows(2e-2, schedules.cosine(65_536, 10_000), Budget(65_536))
  assert {0, 1, 10, 100, 1000, 10_000, 32_768, 65_535} <= found.keys() and len(found) < 25
  assert found[0] == (1e-2, 20) and found[10_000] == (2e-2, 40) and found[65_535] == (1e-5, 0)


@pytest.mark.parametrize("schedule, ends", [
    (schedules.constant(1000, 123), (123, 999)), (schedules.inverse_sqrt(1000, 123), (0, 123)),
    (schedules.warmup_stable_decay(1000, 123, decay_fraction=0.25), (123, 750)),
    (schedules.triangle(1000, peak_at=0.123), (123,))])
def test_table_has_the_ends_of_the_peak(schedule, ends):
  found = rows(1.0, schedule, Budget(1000))
  peak = max(rate for rate, _ in found.values())
  at_peak = [position for position, (rate, _) in found.items() if rate == peak]
  assert (at_peak[0], at_peak[-1]) == (ends[0], ends[-1])


def test_another_unit_is_listed_by_progress():
  found = rows(1e-3, schedules.one_cycle(1000), Budget(86_400, "seconds"))
  assert {0, 8_640, 43_200, 86_400} <= found.keys() and 10 not in found
  assert found[43_200] == (1e-3, 40) and found[86_400] == (0, 0)
  assert schedule_table.table(1.0, schedules.constant(9), Budget(5e10, "tokens")).count("e+10") == 0


@pytest.mark.parametrize("num_steps", [1, 3, 20_000_000])
def test_any_number_of_steps(num_steps):
  found = rows(1.0, schedules.constant(num_steps), Budget(num_steps))
  assert min(found) == 0 and max(found) == num_steps - 1


@pytest.mark.parametrize("name", ["a.png", "a.pdf"])
def test_plot(tmp_path, name):
  schedule_table.plot(1e-3, schedules.triangle(100), Budget(100), tmp_path / name)
  assert (tmp_path / name).read_bytes()[:4] in (b"\x89PNG", b"%PDF")


@pytest.mark.parametrize("name, reason", [("no/a.png", "No such file"), ("a.xyz", "xyz.*png")])
def test_a_plot_that_cannot_be_written(tmp_path, name, reason):
  with pytest.raises(ValueError, match=f"{name} cannot be written: .*{reason}"):
    schedule_table.plot(1e-3, schedules.triangle(100), Budget(100), tmp_path / name)
