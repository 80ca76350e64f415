"""Logs of nccl-tests and rccl-tests that users posted: every number as printed, every oddity said."""

import json
from pathlib import Path

import pytest
from field_cases import FILES, REFERENCE, needs_cases, needs_reference

from nccl_bench.errors import DataError
from nccl_bench.results.importers import header_of, import_file

EXPECTED = json.loads((FILES / "EXPECTED.json").read_text()) if FILES.is_dir() else {}


def read(name, **options):
    return import_file(FILES / name, **options)


def runs(name):
    """[(facts, points)] of each run in a file."""
    file, at, found = read(name), 0, []
    for facts in file.runs:
        found.append((facts, file.points[at : at + facts["points"]]))
        at += facts["points"]
    return found


def last(points, placement):
    return [point for point in points if point.placement == placement][-1]


def said(file, *words):
    return [warning for warning in file.warnings if all(word in warning for word in words)]


@needs_cases
@pytest.mark.parametrize("name", [name for name, found in EXPECTED.items() if any(run["rows"] for run in found)])
def test_every_expected_number_of_a_log_is_read(name):
    found = runs(name)

    assert len(found) == len(EXPECTED[name])
    for (facts, points), expected in zip(found, EXPECTED[name], strict=True):
        assert facts["rows"] == expected["rows"]
        printed = None if expected["avg"] is None else float(expected["avg"])
        assert facts["avg_busbw_GBps"] == printed
        assert facts["concluded"] == expected["concluded"]
        for placement, key in (("out", "last_oop"), ("in", "last_ip")):
            if expected[key] is None:
                assert all(point.placement != placement for point in points)
                continue
            point = last(points, placement)
            assert point.nbytes == expected["last_size"]
            printed = (point.time_us.median, point.algbw_GBps, point.busbw_GBps)
            assert printed == (expected[key]["time"], expected[key]["algbw"], expected[key]["busbw"])
            wrong = expected[key]["wrong"]
            assert point.n_wrong == (None if wrong is None or wrong != int(wrong) else int(wrong))
        assert max(p.busbw_GBps for p in points if p.placement == "out") == expected["peak_oop"]
        for placement, key in (("out", "wrong_oop"), ("in", "wrong_ip")):
            counted = [p.n_wrong for p in points if p.placement == placement and p.n_wrong is not None]
            assert (sum(counted) if counted else None) == expected[key]


@needs_cases
def test_every_point_cites_its_line_and_keeps_what_is_assumed_apart():
    file = read("log_a100_single_210.log")

    lines = (FILES / "log_a100_single_210.log").read_text().splitlines()
    for point in file.points:
        path, line = point.source.rsplit(":", 1)
        assert path.endswith("log_a100_single_210.log")
        assert str(point.nbytes) in lines[int(line) - 1]
        assert point.over_ranks == "mean (assumed)"
        assert point.mean_over_ranks_us == point.time_us.median


@needs_cases
def test_data_that_was_not_checked_is_null_and_never_zero():
    for name in ("log_a100_old_c0_allreduce.log", "log_a100_old_c0_allgather.log", "log_a100_old_c0_broadcast.log"):
        file = read(name)
        assert {point.n_wrong for point in file.points} == {None}
        assert said(file, "not checked")
        empty = [point for point in file.points if point.nbytes == 0]
        assert empty
        assert all(point.status == "skipped" for point in empty)
        assert said(file, "0 bytes", "average counts them")


@needs_cases
@pytest.mark.parametrize(
    "name, collective, n_ranks, n_nodes",
    [
        ("log_a100_old_c0_allreduce.log", "all_reduce", 8, 1),
        ("log_a100_old_c0_allgather.log", "all_gather", 8, 1),
        ("log_a100_old_c0_broadcast.log", "broadcast", 8, 1),
        ("log_a100_pair_150.log", "all_reduce", 16, 2),
        ("log_p4de_srun_label.log", "all_reduce", 16, None),
        ("log_p5_srun_label.log", "all_reduce", 16, None),
        ("log_p5_eks_mpirun_tag_elided.log", "all_reduce", 16, None),
        ("log_t4_efa_info_tagged.log", "all_reduce", 2, 2),
        ("log_nvl72_head_cut.log", "all_reduce", 72, None),
        ("log_gb200_20racks_1440ranks.log", "all_reduce", 1440, None),
        ("log_oci_h100_machinefile.log", "all_reduce", 16, 2),
        ("log_oci_mi300x_rccl_no_names.log", "all_reduce", 16, 2),
        ("log_rccl_mi300x_1node.log", "all_reduce", 8, 1),
        ("log_rccl_mi355x_cycle_no_summary.log", "all_reduce", 16, 2),
        ("log_a3mega_first_lines_no_hash.log", "all_reduce", 16, 2),
        ("log_sendrecv_inplace_na.log", "sendrecv", 8, None),
        ("log_one_gpu_head_cut_sci.log", "all_reduce", 1, None),
        ("log_5090_alltoall_one_rank.log", "all_to_all", 1, 1),
        ("log_h20_alltoall_info_no_summary.log", "all_to_all", 4, 2),
        ("log_rccl_allgather_label_row_cut.log", "all_gather", 32, None),
        ("log_stepbytes_tail_head_cut.log", "all_reduce", 24, None),
        ("log_p4d_dip_at_64M.log", "all_reduce", 16, None),
        ("log_gb300_allreduce_64ranks_rack.log", "all_reduce", 64, None),
        ("log_gb300_alltoall_1node_comment_row.log", "all_to_all", 4, 1),
        ("log_h200nvl_out_of_place_only.log", "all_reduce", 8, 1),
        ("derived_J_gh200_8ranks.json", "all_reduce", 8, 2),
    ],
)
def test_collective_ranks_and_nodes_are_read_or_worked_out(name, collective, n_ranks, n_nodes):
    file = read(name)

    assert {point.collective for point in file.points} == {collective}
    assert (file.n_ranks, file.n_nodes) == (n_ranks, n_nodes)
    assert not said(file, "busbw/algbw says")


@needs_cases
def test_hosts_come_from_the_device_list_alone():
    assert read("log_a100_pair_150.log").runs[0]["hosts"] == ["node01", "node02"]
    assert read("log_oci_h100_machinefile.log").runs[0]["hosts"] == ["h100-xxx01-03-14", "h100-xxx01-03-294"]


@needs_cases
def test_missing_rows_and_missing_summaries_are_said():
    assert said(read("log_p5_eks_mpirun_tag_elided.log"), "rows missing: mean of rows 208.68 != printed 52.9753")
    assert said(read("log_gb300_alltoall_1node_comment_row.log"), "rows missing", "651.67", "381.478")
    assert said(read("log_stepbytes_tail_head_cut.log"), "rows missing", "96.05", "84.8558")
    assert said(read("log_h20_alltoall_info_no_summary.log"), "stopped after 4294967296 of 17179869184")
    for name in ("log_p4de_srun_label.log", "log_p5_srun_label.log", "log_rccl_mi355x_cycle_no_summary.log", "log_sendrecv_inplace_na.log"):
        file = read(name)
        assert said(file, "no summary line")
        assert file.runs[0]["complete"] is False


@needs_cases
def test_a_sweep_whose_last_size_lies_below_the_maximum_is_complete():
    file = read("log_broadcast_factor4_last_below_max.log")

    assert file.runs[0]["complete"] is True
    assert not said(file, "missing")
    assert said(file, "ranks 0, 1 of lab share GPU 0")
    assert header_of([file]).shared_gpu


@needs_cases
def test_bus_ids_of_zero_are_no_evidence_of_a_shared_gpu():
    assert not read("log_a100_single_210.log").shared_gpu
    assert not read("log_a100_pair_150.log").shared_gpu


@needs_cases
def test_wrong_data_is_kept_and_said():
    file = read("log_gh200_wrong_one_size.log")
    wrong = {(point.nbytes, point.placement): point.n_wrong for point in file.points if point.n_wrong}

    assert wrong == {(1048576, "out"): 96, (1048576, "in"): 32}
    assert said(file, "WRONG DATA", "4 FAILED")
    assert {point.n_wrong for point in read("log_dgxh100_wrong_large_elided.log").points} == {0, 237858, 238038}


@needs_cases
def test_two_jobs_in_one_another_stay_two_runs():
    file = read("log_h20_two_jobs_interleaved_a.log")

    assert [(run["rows"], run["n_ranks"], run["hosts"]) for run in file.runs] == [(12, 8, ["node3"]), (12, 8, ["node2"])]
    assert said(file, "built without MPI")
    assert {point.pass_ for point in file.points} == {0, 1}


@needs_cases
def test_a_run_of_several_is_chosen_by_its_number():
    second = read("log_r9700_gdr_on_off_two_runs.log", only=2)

    assert second.runs[0]["avg_busbw_GBps"] == 3.53671
    assert len(second.points) == 50
    with pytest.raises(DataError, match="no run 3 in it: it holds 2"):
        read("log_r9700_gdr_on_off_two_runs.log", only=3)


@needs_cases
def test_carriage_returns_change_nothing():
    windows, unix = read("derived_crlf.log"), read("log_gh200_with_plugin.log")

    def numbers(file):
        return [(p.collective, p.nbytes, p.placement, p.time_us, p.busbw_GBps) for p in file.points]

    assert numbers(windows) == numbers(unix)
    assert [rank["gpu"]["name"] for rank in windows.ranks] == ["NVIDIA GH200 120GB"] * 8


@needs_cases
def test_a_row_cut_by_the_end_of_the_file_is_dropped_and_named():
    file = read("derived_cut_mid_row.log")

    assert file.runs[0]["rows"] == 7
    assert last(file.points, "out").nbytes == 2147483648
    assert said(file, "derived_cut_mid_row.log:19", "cut")


@needs_cases
def test_a_row_without_its_last_field_keeps_its_numbers():
    file = read("log_rccl_allgather_label_row_cut.log")

    assert (last(file.points, "in").busbw_GBps, last(file.points, "in").n_wrong) == (0.03, None)
    assert said(file, "line 8", "not known")
    assert said(file, "busbw dips at 2097152 B")


@needs_cases
def test_a_dip_is_pointed_out_with_its_size_and_depth():
    assert said(read("log_p4d_dip_at_64M.log"), "busbw dips at 67108864 B: 19.1 GB/s after 32.57 at 33554432 B (-41 %)")


@needs_cases
def test_a_deviation_is_no_count_of_wrong_elements():
    file = read("log_p4d_dip_at_64M.log")

    assert {point.n_wrong for point in file.points} == {None}
    assert said(file, "error column (5e-07 at most)")


@needs_cases
def test_one_rank_is_said_to_measure_nothing():
    for name in ("log_one_gpu_head_cut_sci.log", "log_5090_alltoall_one_rank.log"):
        assert said(read(name), "single rank")


@needs_cases
@pytest.mark.parametrize(
    "name, words",
    [
        ("log_mpirun_not_enough_slots.log", ("no nccl-tests table in", "not enough slots", "16")),
        ("log_5090_crash_after_header.log", ("common.cu:392", "unhandled cuda error")),
        ("log_c00_network_error_before_table.log", ("remote process exited or there was a network error",)),
        ("log_c00_alltoall_network_error.log", ("alltoall.cu:274",)),
        ("log_gh200_device_busy_no_table.log", ("CUDA-capable device(s) is/are busy or unavailable",)),
        ("log_h20_fabricmanager_no_rows.log", ("system not yet initialized",)),
        ("err_w05_duplicate_gpu_mpirun_tags.txt", ("Duplicate GPU detected",)),
    ],
)
def test_a_run_that_failed_before_any_row_is_quoted(name, words):
    file = read(name)

    assert not file.points
    assert all(word in file.failure for word in words)
    line = int(file.failure.split(":")[1])
    quoted = (FILES / name).read_text().splitlines()[line - 1]
    assert file.failure.rsplit(": ", 1)[1][-20:] in quoted


@needs_cases
def test_failures_come_with_who_reported_them_and_what_to_look_at():
    busy = read("log_gh200_device_busy_no_table.log")
    shared = read("err_w05_duplicate_gpu_mpirun_tags.txt")

    assert "node-01 (pid 3617715, 3617718)" in busy.hints[0]
    assert "node-07 (pid 3230358, 3230359, 3230360, 3230361)" in busy.hints[0]
    assert "compute mode" in busy.hints[1]
    assert "fabric manager" in read("log_h20_fabricmanager_no_rows.log").hints[-1]
    assert "NCCL_DEBUG=INFO" in read("log_5090_crash_after_header.log").hints[-1]
    assert shared.hints[0] == "ranks 0, 1, 2, 4, 5 of node-gpu-03 share CUDA device 1000"


@needs_cases
@pytest.mark.parametrize(
    "name, words",
    [
        ("log_v24_rows_commented_out.log", "9 commented lines look like rows"),
        ("log_placeholder_xxxxx.log", "no numeric rows"),
        ("err_w09_socket_fallback_no_libibverbs.txt", "no nccl-tests table"),
        ("err_w10_barrier_device_guess.txt", "no nccl-tests table"),
        ("topo_h100_nv18_8gpu.txt", "no nccl-tests table"),
        ("xml_aws_p4d.xml", "no nccl-tests table"),
        ("nvlink_status_a10.txt", "no nccl-tests table"),
        ("SOURCES.md", "no nccl-tests table"),
    ],
)
def test_what_is_no_log_is_an_error_with_its_path(name, words):
    with pytest.raises(DataError, match=words) as caught:
        read(name)

    assert name in caught.value.why


@needs_cases
def test_json_of_nccl_tests_is_read_and_its_environment_stays_out():
    file = read("derived_J_gh200_8ranks.json")
    header = json.dumps(header_of([file]).to_json())

    assert file.runs[0]["avg_busbw_GBps"] == 19.7866
    assert file.runs[0]["out_of_bounds"] == {"count": 0, "ok": True}
    assert file.started_at == "2026-07-09T16:03:21"
    assert file.versions == {"nccl": "2.28.9"}
    assert {point.root for point in file.points} == {None}
    assert "EXAMPLE" not in header
    assert "hf_" not in header
    assert "/home/user" not in header


@needs_cases
def test_json_of_a_killed_program_keeps_its_whole_results():
    file = read("derived_J_killed_mid_write.json")

    assert len(file.points) == 48
    assert said(file, "truncated JSON after 24 complete results")
    assert file.runs[0]["complete"] is False


@needs_reference
def test_our_own_reference_logs_are_read_whole():
    file = import_file(REFERENCE / "h200x2" / "nccl-tests-threads.log")

    assert [run["collective"] for run in file.runs] == [
        *("all_reduce", "all_gather", "reduce_scatter", "sendrecv", "all_to_all", "broadcast", "all_reduce", "all_reduce"),
    ]
    assert all(run["complete"] for run in file.runs)
    assert {point.clock for point in file.points} == {None, "graph"}
    assert {point.shift for point in file.points if point.collective == "sendrecv"} == {"ring"}
    graph = [point for point in file.points if point.clock == "graph"]
    assert {point.ops_per_batch for point in graph} == {400}
    assert Path(file.path).name == "nccl-tests-threads.log"
