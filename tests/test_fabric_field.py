"""Real topology files from public repositories: each is read to the right values, or refused with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fabric_samples import FIELD_CASES, needs_field_cases

from nccl_bench.errors import DataError, DetectError
from nccl_bench.fabric import nccl_log
from nccl_bench.fabric.data import clean
from nccl_bench.fabric.files import topology_from
from nccl_bench.fabric.ideal import ceilings
from nccl_bench.fabric.topology import Node, domains

pytestmark = needs_field_cases
CASES = FIELD_CASES / "cases" / "files"
TOPOLOGY = FIELD_CASES / "reference" / "topology"
H200X2 = FIELD_CASES / "reference" / "h200x2"
EIGHT = (tuple(range(8)),)
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "ceilings.py"


def node(*paths: Path, gpu: str | None = None) -> Node:
    (found,) = topology_from(list(paths), {}, gpu_name=gpu).nodes
    return found


def links(found: Node) -> set[int | None]:
    return {gpu.nvlink.links if gpu.nvlink else None for gpu in found.gpus or ()}


def rates(found: Node) -> set[float | None]:
    return {gpu.nvlink.per_direction_GBps if gpu.nvlink else None for gpu in found.gpus or ()}


# (file, GPUs, NICs, links a GPU, GB/s a GPU, switch, domains); None is unknown
FILES = [
    (CASES / "topo_2gpu_header_lost_tab.txt", 2, 0, {3}, {None}, False, ((0, 1),)),
    (CASES / "topo_a100_nv12_8gpu.txt", 8, 0, {12}, {300}, True, EIGHT),
    (CASES / "topo_ansi_underline_tabs_6gpu.txt", 6, 0, {0}, {0}, False, ()),
    (CASES / "topo_h100_nv18_8gpu.txt", 8, 0, {18}, {None}, True, EIGHT),
    (CASES / "topo_h200_slurm_blank_cpu_affinity_10nic.txt", 8, 10, {18}, {None}, True, EIGHT),
    (CASES / "topo_h20_8gpu_2nic_phb.txt", 8, 2, {18}, {None}, True, EIGHT),
    (CASES / "topo_mlx5_named_columns.txt", 4, 2, {18}, {None}, True, ((0, 1, 2, 3),)),
    (CASES / "topo_nv2_pair.txt", 2, 0, {2}, {None}, False, ((0, 1),)),
    (CASES / "topo_phb_pair.txt", 2, 0, {0}, {0}, False, ()),
    (CASES / "topo_t4_old_no_numa_column.txt", 4, 0, {0}, {0}, False, ()),
    (CASES / "topo_v100_4gpu_2nic.txt", 4, 2, {6}, {None}, False, ((0, 1, 2, 3),)),
    (CASES / "topo_vm_h20_8gpu_8nic_reversed.txt", 8, 8, {18}, {None}, True, EIGHT),
    (CASES / "xml_aws_p4d.xml", 8, 4, {None}, {None}, None, None),
    (CASES / "xml_azure_ndv2.xml", 8, 1, {None}, {None}, None, None),
    (CASES / "xml_azure_ndv4.xml", 8, 8, {None}, {None}, None, None),
    (CASES / "xml_azure_ndv5.xml", 8, 8, {None}, {None}, None, None),
    (CASES / "xml_oci_h100_kubernetes.xml", 8, 16, {18}, {450}, True, EIGHT),
    (CASES / "xml_rccl_16gpu_8nic_vm.xml", 16, 8, {7}, {350}, False, (tuple(range(16)),)),
    (CASES / "xml_rccl_3gpu_1nic.xml", 3, 1, {0}, {0}, False, ()),
    (CASES / "xml_rccl_8gpu_2nic_mixed_gen.xml", 8, 2, {0}, {0}, False, ()),
    (CASES / "xml_rccl_8p_940vm.xml", 8, 8, {7}, {448}, False, EIGHT),
    (CASES / "xml_vm_bridge_gen1_x1.xml", 1, 1, {18}, {450}, True, ((3,),)),
    (CASES / "nvlink_status_a100.txt", 8, None, {12}, {300}, None, None),
    (CASES / "nvlink_v100_two_inactive.txt", 1, None, {4}, {100}, None, None),
    (TOPOLOGY / "azure-ncv4-topo.xml", 4, 1, {12}, {300}, False, None),
    (TOPOLOGY / "oci-H100-topology.xml", 8, 16, {18}, {450}, True, EIGHT),
    (TOPOLOGY / "oci-topo-flattened.xml", 8, 8, {None}, {None}, None, None),
    (TOPOLOGY / "rccl-topo_16p1h.xml", 16, 8, {7}, {350}, False, (tuple(range(16)),)),
    (TOPOLOGY / "rccl-topo_8p6l.xml", 8, 1, {6}, {276}, False, EIGHT),
    (TOPOLOGY / "rccl-topo_8p_90a.xml", 8, 1, {3}, {None}, False, EIGHT),
    (TOPOLOGY / "rccl-topo_8p_pcie.xml", 8, 1, {0}, {0}, False, ()),
    (TOPOLOGY / "rocm-smi-8gpu-xgmi-topotype.txt", 8, None, {None}, {None}, False, EIGHT),
    (TOPOLOGY / "rocm-smi-8xmi300x-showtopo.txt", 8, None, {None}, {None}, False, EIGHT),
    (TOPOLOGY / "smi-2gpu-nv1.txt", 2, 0, {1}, {None}, False, ((0, 1),)),
    (TOPOLOGY / "smi-4gpu-nv1-pairs-sys.txt", 4, 0, {1}, {None}, False, ((0, 1), (2, 3))),
    (TOPOLOGY / "smi-4gpu-nv12-minimal.txt", 4, 0, {12}, {300}, True, ((0, 1, 2, 3),)),
    (TOPOLOGY / "smi-4gpu-phb.txt", 4, 0, {0}, {0}, False, ()),
    (TOPOLOGY / "smi-4xgb200-nics-all-sys.txt", 4, 6, {18}, {None}, True, ((0, 1, 2, 3),)),
    (TOPOLOGY / "smi-4xv100-nv2-mesh.txt", 4, 1, {6}, {None}, False, ((0, 1, 2, 3),)),
    (TOPOLOGY / "smi-8xa100-nv12-10nic.txt", 8, 10, {12}, {300}, True, EIGHT),
    (TOPOLOGY / "smi-8xa800-nv8-8nic-head.txt", 8, 8, {8}, {200}, True, EIGHT),
    (TOPOLOGY / "smi-8xh100-nv18-1nic.txt", 8, 1, {18}, {None}, True, EIGHT),
    (TOPOLOGY / "smi-dgx1v-8xv100-4mlx5.txt", 8, 4, {6}, {None}, False, EIGHT),
    (TOPOLOGY / "smi-nvlink-s-v100-excerpt.txt", 1, None, {6}, {150}, None, None),
    (TOPOLOGY / "smi-old-driver-soc.txt", 4, 0, {0}, {0}, False, ()),
    (H200X2 / "topo.xml", 2, 1, {18}, {450}, True, ((0, 1),)),
    (H200X2 / "nccl-debug-init-tuning.log", 2, None, {18}, {450}, True, ((0, 1),)),
]


@pytest.mark.parametrize("case", FILES, ids=lambda case: case[0].name)
def test_a_file_is_read_to_what_it_says(case: tuple) -> None:
    path, n_gpus, n_nics, n_links, rate, switch, joined = case

    found = node(path)

    assert len(found.gpus or ()) == n_gpus
    assert (None if found.nics is None else len(found.nics)) == n_nics
    assert links(found) == n_links
    assert rates(found) == rate
    assert found.switch is switch
    assert domains(found) == joined


def test_every_topology_file_is_read_or_refused_with_a_reason() -> None:
    paths = [path for folder in (TOPOLOGY, H200X2, CASES) for path in sorted(folder.iterdir())]
    for path in paths:
        try:
            topology = topology_from([path], {})
        except (DataError, DetectError) as err:
            why = err.why
        else:
            why = topology.nodes[0].label
        assert why


def test_nearest_nics_are_those_of_the_table_and_not_of_equal_numbers() -> None:
    reversed_ = {nic.name: nic.gpus for nic in node(CASES / "topo_vm_h20_8gpu_8nic_reversed.txt").nics or ()}
    shared = {nic.name: nic.gpus for nic in node(CASES / "topo_v100_4gpu_2nic.txt").nics or ()}
    phb = {nic.name: nic.gpus for nic in node(CASES / "topo_h20_8gpu_2nic_phb.txt").nics or ()}
    named = {nic.name: nic.gpus for nic in node(CASES / "topo_mlx5_named_columns.txt").nics or ()}

    assert reversed_ == {f"NIC{at}": (7 - at,) for at in range(8)}
    assert shared == {"NIC0": (0, 1), "NIC1": (2, 3)}
    assert phb == {"NIC0": tuple(range(8)), "NIC1": tuple(range(8))}
    assert named == {"mlx5_0": (0, 1), "mlx5_1": (2, 3)}


def test_storage_nics_of_a_slurm_node_are_no_rails_and_a_blank_affinity_moves_nothing() -> None:
    found = node(CASES / "topo_h200_slurm_blank_cpu_affinity_10nic.txt")

    assert {nic.name: nic.gpus for nic in found.nics or () if nic.used} == {f"mlx5_{at + 2 if at else 0}": (at,) for at in range(8)}
    assert [nic.name for nic in found.nics or () if not nic.used] == ["mlx5_1", "mlx5_2"]
    assert [gpu.numa for gpu in found.gpus or ()] == [0] * 4 + [1] * 4
    assert [gpu.cpus for gpu in found.gpus or ()] == [None] * 4 + ["56"] * 4


def test_a_sysfs_with_a_storage_bond_and_a_full_counter() -> None:
    found = node(CASES / "sysfs_h100_8ib_1bond")

    used = [nic for nic in found.nics or () if nic.used]
    assert sum(nic.line_GBps or 0 for nic in used) == 400
    assert [nic.name for nic in found.nics or () if not nic.used] == ["mlx5_bond_0"]
    assert any("mlx5_1: link_downed stands at 255" in text for text in found.warnings)


def test_old_adapters_without_a_type_are_read() -> None:
    found = node(CASES / "sysfs_mixed_hfi_mlx4_mlx5")

    assert [(nic.label, nic.rate_gbit) for nic in found.nics or ()] == [("hfi1_0", 100), ("mlx4_0", 40), ("mlx4_0:2", 40), ("mlx5_0", 25)]
    # The line rate of QDR is 40; 8b/10b leaves 4 GB/s of it for data.
    assert [nic.line_GBps for nic in found.nics or ()] == [12.5, 4.0, 4.0, 3.125]


def test_a_disabled_port_and_an_efa_port() -> None:
    disabled = node(CASES / "ibstatus_second_port_disabled.txt")
    efa = node(CASES / "ibv_devinfo_efa.txt")

    assert [(nic.name, nic.line_GBps) for nic in disabled.nics or () if nic.used] == [("mlx5_0", 25)]
    assert [(nic.link_layer, nic.state) for nic in efa.nics or ()] == [("EFA", None)]
    assert efa.warnings == ("efa_0: link state not reported by this driver",)


def test_files_that_lack_gpus_or_kinds_say_so() -> None:
    p5, g5, empty = node(CASES / "xml_aws_p5_no_arch.xml"), node(CASES / "xml_aws_g5_minimal.xml"), node(CASES / "nvlink_status_a10.txt")

    assert (p5.gpus, len(p5.nics or ())) == (None, 32)
    assert {nic.pcie.generation for nic in p5.nics or () if nic.pcie} == {5}
    assert any("no arch" in text for text in p5.warnings)
    assert (g5.gpus, g5.nics, g5.unknown_devices) == (None, None, 9)
    assert (empty.gpus, empty.switch) == (None, False)


def test_a_virtual_bridge_does_not_make_a_ceiling() -> None:
    found = node(CASES / "xml_vm_bridge_gen1_x1.xml")

    assert any("virtual PCI bridge 2.5 GT/s x1" in text and "NCCL_TOPO_FILE" in text for text in found.warnings)
    assert [nic.line_GBps for nic in found.nics or ()] == [25]


def test_mixed_generations_are_limited_by_their_slowest_hop() -> None:
    found = node(CASES / "xml_rccl_8gpu_2nic_mixed_gen.xml")

    assert {gpu.pcie.path_GBps for gpu in found.gpus or () if gpu.pcie} == {15.754}


def test_a_dump_a_log_and_a_graph_of_one_machine_agree() -> None:
    found = node(H200X2 / "topo.xml", H200X2 / "nccl-debug-init-tuning.log", H200X2 / "graph.xml")

    assert [(gpu.name, gpu.bus_id) for gpu in found.gpus or ()] == [("H200-SXM", "0000:00:06.0"), ("H200-SXM", "0000:00:07.0")]
    assert not any(" says " in text for text in found.warnings)
    assert found.nccl is not None
    assert found.nccl["graphs"]["ring"]["total_GBps"] == found.nccl["ring_GBps"] == 360


def test_the_algorithms_of_a_real_run() -> None:
    found = nccl_log.algorithms(clean((H200X2 / "nccl-debug-init-tuning.log").read_text()))

    assert len(found) == 14
    assert {(choice.algorithm, choice.protocol) for choice in found.values()} == {("ring", "LL"), ("ring", "Simple")}
    assert found["all_reduce", 131072].channels == 16


def test_the_network_of_real_logs() -> None:
    sharp = nccl_log.network((TOPOLOGY / "log-nccl-info-2x8h100-ib-sharp-plugin.txt").read_text())
    socket = nccl_log.network(clean((CASES / "err_w09_socket_fallback_no_libibverbs.txt").read_text()))

    assert (sharp.name, sharp.gdr, sharp.pxn, sharp.nvls_used, sharp.sharp_available, sharp.sharp_used) == ("IBext", True, True, True, True, False)
    assert (sharp.n_ranks, dict(sharp.transports)) == (16, {"NET/IBext": 35, "P2P/CUMEM": 30})
    assert socket.name == "Socket"
    assert any("veth" in text for text in socket.warnings)


def test_ceilings_of_a_real_mesh_name_the_cut_that_binds() -> None:
    topology = topology_from([TOPOLOGY / "smi-dgx1v-8xv100-4mlx5.txt"], {}, gpu_name="V100-SXM2")

    found = ceilings(topology, None, {})

    assert found.of("all_to_all").line_GBps == pytest.approx(65.625)
    assert found.of("all_to_all").limited_by == "links between 4 of the GPUs and the other 4"


def test_no_published_result_is_above_its_line_and_healthy_ones_are_near_attainable() -> None:
    argv = [sys.executable, str(SCRIPT), str(FIELD_CASES / "reference" / "published.json")]

    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert "above line: 0;" in done.stdout
    healthy = next(line for line in done.stdout.splitlines() if " healthy: median " in line)
    median = float(healthy.split("median ")[1].split(",")[0])
    highest = float(healthy.split("highest ")[1].split(",")[0])
    assert median >= 0.92
    assert highest <= 1.05


def test_the_observations_in_the_package_are_those_of_the_published_results(tmp_path: Path) -> None:
    out = tmp_path / "expected.json"

    argv = [sys.executable, str(SCRIPT), str(FIELD_CASES / "reference" / "published.json"), "--write", str(out)]
    subprocess.run(argv, capture_output=True, timeout=120, check=True)

    kept = Path(__file__).parents[1] / "nccl_bench" / "fabric" / "expected.json"
    assert json.loads(out.read_text()) == json.loads(kept.read_text())
