from __future__ import annotations

from corald.core.window import StabilityWindow


def window(floor: float = 0.0) -> StabilityWindow:
    return StabilityWindow(now=0.0, floor=floor)


def test_without_an_up_delay_a_rise_is_followed_at_once():
    assert window().update(0.0, 100.0, up=0.0, down=600.0) == 100.0


def test_a_fall_is_followed_only_after_the_down_delay():
    w = window()
    w.update(0.0, 100.0, up=0.0, down=600.0)
    assert w.update(10.0, 20.0, up=0.0, down=600.0) == 100.0
    assert w.update(609.0, 20.0, up=0.0, down=600.0) == 100.0
    assert w.update(610.0, 20.0, up=0.0, down=600.0) == 20.0


def test_a_dip_during_the_up_delay_follows_the_lowest_level():
    w = window(10.0)
    w.update(0.0, 10.0, up=30.0, down=600.0)
    w.update(1.0, 50.0, up=30.0, down=600.0)
    w.update(20.0, 40.0, up=30.0, down=600.0)
    assert w.update(25.0, 50.0, up=30.0, down=600.0) == 10.0
    assert w.update(32.0, 50.0, up=30.0, down=600.0) == 40.0
    assert w.update(56.0, 50.0, up=30.0, down=600.0) == 50.0


def test_a_saw_tooth_shorter_than_the_down_delay_never_shrinks():
    w = window()
    used = [
        w.update(t, 120.0 if (t // 30) % 2 else 80.0, up=0.0, down=600.0)
        for t in range(0, 3600, 10)
    ]
    assert set(used[3:]) == {120.0}


def test_a_restart_begins_at_what_runs_and_waits_a_whole_window():
    w = window(70.0)
    assert w.update(1.0, 20.0, up=0.0, down=600.0) == 70.0
    assert w.update(602.0, 20.0, up=0.0, down=600.0) == 20.0


def test_the_next_change_is_when_the_old_level_leaves_the_window():
    w = window()
    w.update(0.0, 100.0, up=0.0, down=600.0)
    w.update(10.0, 20.0, up=0.0, down=600.0)
    assert w.next_change(10.0, up=0.0, down=600.0) == 610.0
    w.update(610.0, 20.0, up=0.0, down=600.0)
    assert w.next_change(610.0, up=0.0, down=600.0) is None
