"""fabric/gpus.py, spec.py: the table of models, and hardware by name."""

from __future__ import annotations

import pytest

from nccl_bench.errors import DetectError, UsageError
from nccl_bench.fabric import gpus, spec


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H20", "H20-SXM"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-SXM"),
        ("A100-PCIE-40GB", "A100-PCIE"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE"),
        ("Tesla V100-SXM2-32GB", "V100-SXM"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
    ],
)
def test_drivers_names_find_their_model(name: str, model: str) -> None:
    found = gpus.by_driver_name(name)

    assert found is not None
    assert found.name == model


@pytest.mark.parametrize("name", ["NVIDIA H1000", "H100", "RTX 9999", "", "Tesla"])
def test_a_name_that_is_not_in_the_table_has_no_model(name: str) -> None:
    assert gpus.by_driver_name(name) is None


@pytest.mark.parametrize(("text", "model"), [("h100-sxm5", "H100-SXM"), ("H200", "H200-SXM"), ("b200", "B200"), ("A800", "A800-SXM")])
def test_users_names_find_their_model(text: str, model: str) -> None:
    assert gpus.find(text).name == model


def test_a_model_of_several_forms_must_be_named_in_full() -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find("H100")

    assert caught.value.hints == ("say which: H100-SXM or H100-PCIE or H100-NVL",)


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(DetectError, match="X9"):
        gpus.find("X9")


def test_pci_numbers_mean_one_model_each() -> None:
    numbers = [number for model in gpus.MODELS for number in model.pci]

    assert len(numbers) == len(set(numbers))
    found = gpus.by_pci("0x10de", "0x2335")
    assert found is not None
    assert found.name == "H200-SXM"


def test_every_model_has_a_source_and_rates_that_agree() -> None:
    for model in gpus.MODELS:
        assert model.source
        assert (model.links > 0) == (model.link_GBps is not None) == (model.effective_link_GBps is not None)
        assert model.joined
        if model.links:
            assert model.effective_link_GBps is not None
            assert model.link_GBps is not None
            assert 0.7 * model.link_GBps < model.effective_link_GBps < model.link_GBps
            assert gpus.by_driver_name(model.label) in (model, None)


@pytest.mark.parametrize(("signal", "generation", "rate"), [(26.562, 4, 25), (53.125, 5, 50), (25.781, 2, 25), (25, 3, 25), (14.062, None, 14.062)])
def test_signalling_rates_become_marketed_ones(signal: float, generation: int | None, rate: float) -> None:
    assert gpus.marketed(signal, generation) == pytest.approx(rate, abs=0.01)


def test_a_count_of_links_tells_the_rate_only_where_all_models_agree() -> None:
    assert gpus.rate_of_count(12) == 25
    assert gpus.rate_of_count(18) is None
    assert gpus.rate_of_count(4) is None


@pytest.mark.parametrize("text", ["8H100", "x8", "0xH100-SXM", "", "8x", "-1xH100-SXM", "99999xH100-SXM"])
def test_a_wrong_gpus_text_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        spec.parse_gpus(text)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("8x400-IB", (8, 400, "InfiniBand")), ("16x200-RoCE", (16, 200, "RoCE")), ("4x100-efa", (4, 100, "EFA")), ("none", (0, 0, "Ethernet"))],
)
def test_nics_are_count_rate_and_kind(text: str, parsed: tuple) -> None:
    assert spec.parse_nics(text) == parsed


@pytest.mark.parametrize("text", ["8x400", "8x400-foo", "x400-IB", "0x400-IB", "8x0-IB", "8-IB"])
def test_a_wrong_nics_text_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        spec.parse_nics(text)


@pytest.mark.parametrize(
    ("count", "gpus_", "shares"), [(8, 8, [(0,), (1,)]), (4, 8, [(0, 1), (2, 3)]), (16, 8, [(0,), (0,)]), (1, 4, [(0, 1, 2, 3)])]
)
def test_nics_are_shared_out_over_neighbouring_gpus(count: int, gpus_: int, shares: list) -> None:
    node = spec.node_of(gpus_, gpus.find("H100-SXM"), (count, 400.0, "InfiniBand"))

    assert [nic.gpus for nic in node.nics or ()][: len(shares)] == shares
    assert {gpu for nic in node.nics or () for gpu in nic.gpus or ()} == set(range(gpus_))


def test_every_known_system_is_described_by_known_parts_and_has_a_source() -> None:
    names = [word for system in spec.systems() for word in (system.name, *system.aliases)]

    assert len(names) == len({name.lower() for name in names})
    for system in spec.systems():
        assert system.source
        assert spec.topology_of(system.gpus, system.nics, 1).nodes
    assert spec.find_system("P5").gpus == "8xH100-SXM"
    with pytest.raises(DetectError):
        spec.find_system("cray-1")


def test_racks_and_oversubscription() -> None:
    topology = spec.topology_of("8xH100-SXM", "8x400-IB", 8, racks="2x4", oversubscription="2:1")

    assert [node.rack for node in topology.nodes] == ["rack0"] * 4 + ["rack1"] * 4
    assert topology.oversubscription == 2
    for racks, ratio in (("3x4", None), (None, "2:1"), ("2x4", "1:2"), ("2x4", "two")):
        with pytest.raises(UsageError):
            spec.topology_of("8xH100-SXM", "8x400-IB", 8, racks=racks, oversubscription=ratio)


def test_how_dies_are_joined_is_not_guessed() -> None:
    with pytest.raises(DetectError, match="differs from board to board"):
        spec.topology_of("16xMI250X", None, 1)


def test_one_node_is_repeated_and_several_are_not() -> None:
    topology = spec.topology_of("8xH100-SXM", "8x400-IB", 1)

    assert len(spec.repeat(topology, 5).nodes) == 5
    with pytest.raises(UsageError):
        spec.repeat(spec.repeat(topology, 2), 3)
