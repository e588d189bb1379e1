"""Detection of pods of an indexed Kubernetes job."""

from __future__ import annotations

from ding_lite.parallel.launch.environment.kubernetes import detect
from tests.parallel.launch.environment.environs import KUBERNETES


def test_the_index_is_the_node_id_and_the_template_has_the_number() -> None:
    place = detect(KUBERNETES)
    assert place is not None
    assert (place.launcher, place.node_id, place.num_nodes) == ("kubernetes", 1, 3)
    assert not place.on_one_machine


def test_host_names_of_all_pods_follow_from_that_of_pod_0() -> None:
    place = detect(KUBERNETES)
    assert place is not None
    assert place.hosts == {k: f"train-{k}.train-pods" for k in range(3)}
    short = detect({**KUBERNETES, "MASTER_ADDR": "train-0"})
    assert short is not None
    assert short.hosts == {k: f"train-{k}" for k in range(3)}


def test_an_unusual_name_of_pod_0_is_kept() -> None:
    for other in ("10.0.0.7", "hub.example", "other-0.train-pods"):
        place = detect({**KUBERNETES, "MASTER_ADDR": other})
        assert place is not None
        assert place.hosts == {0: other}


def test_a_missing_name_of_pod_0_is_explained() -> None:
    place = detect({**KUBERNETES, "MASTER_ADDR": ""})
    assert place is not None
    assert place.hosts == {}
    assert "Set MASTER_ADDR in the pod template to the name of pod 0: train-0." in place.how_to_tell


def test_pods_without_a_number_of_nodes_are_no_job() -> None:
    without_number = {k: v for k, v in KUBERNETES.items() if k != "DING_LITE_NUM_NODES"}
    assert detect(without_number) is None
    assert detect({"DING_LITE_NUM_NODES": "3"}) is None


def test_a_pod_with_another_hostname_is_detected() -> None:
    place = detect({**KUBERNETES, "HOSTNAME": "elsewhere"})
    assert place is not None
    assert place.job == "train-0.train-pods"
