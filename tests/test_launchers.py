"""Who am I: the launchers' variables, agreeing and contradicting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.errors import LaunchError
from nccl_bench.launch.launchers import Launch, candidate_ports, from_environ, refuse_mig

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "GPU0002", "MASTER_PORT": "15472",
    "TORCHELASTIC_RUN_ID": "run7", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip
STEP = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_NODELIST": "h[1-2]",
    "SLURM_STEP_NODELIST": "h[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURMD_NODENAME": "h2", "SLURM_LAUNCH_NODE_IPADDR": "10.77.0.100",
}  # fmt: skip
BATCH = {
    "SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "3", "PMIX_RANK": "3", "PMIX_NAMESPACE": "1317994497", "PMIX_HOSTNAME": "vm",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    "MPIRUN_ID": "4242",
}  # fmt: skip


def place(launch: Launch) -> tuple[object, ...]:
    return (launch.launcher, launch.rank, launch.world_size, launch.local_rank, launch.local_size, launch.board_host)


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def error(environ: dict[str, str], host: str = "h2") -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        from_environ(environ, host)
    assert caught.value.exit_code == 3
    assert caught.value.hints
    return caught.value


def test_torchruns_variables_say_all() -> None:
    launch = from_environ(TORCHRUN, "GPU0001")

    assert place(launch) == ("torchrun", 3, 4, 1, 2, "GPU0002")
    assert launch.node_rank == 1
    assert launch.host == "GPU0001"


def test_rank_0_meets_at_master_addr_where_that_is_another_node() -> None:
    seen = {"MASTER_ADDR": "GPU0002", "MASTER_PORT": "15472", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}

    assert place(from_environ(seen, "GPU0001")) == ("torchrun", 0, 4, 0, 2, "GPU0002")


def test_a_step_of_slurm_meets_at_its_first_host_not_where_srun_ran() -> None:
    launch = from_environ(STEP, "h2")

    assert place(launch) == ("slurm", 3, 4, 1, 2, "h1")
    assert launch.job == "77"
    assert launch.rank_hosts == ("h1", "h1", "h2", "h2")


def test_uneven_tasks_are_not_divided() -> None:
    environ = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_LOCALID": "0"}

    launch = from_environ(environ, "h2")

    assert (launch.local_rank, launch.local_size) == (0, 1)
    assert launch.rank_hosts == ("h1", "h1", "h1", "h2")


def test_ranks_that_are_not_dealt_in_blocks_have_no_known_host() -> None:
    assert from_environ({**STEP, "SLURM_DISTRIBUTION": "cyclic"}, "h2").rank_hosts == ()
    assert from_environ({**STEP, "SLURMD_NODENAME": "h1"}, "h1").rank_hosts == ()


def test_open_mpi_is_one_world_and_meets_on_this_host_when_all_ranks_are_here() -> None:
    assert place(from_environ(OPENMPI, "vm")) == ("openmpi", 3, 4, 3, 4, "127.0.0.1")


def test_open_mpi_over_hosts_needs_a_place_to_meet() -> None:
    over_hosts = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}

    assert "MASTER_ADDR" in error(over_hosts).hints[0]
    assert from_environ({**over_hosts, "MASTER_ADDR": "h1"}, "h2").board_host == "h1"


def test_mpirun_inside_a_batch_job_meets_at_the_jobs_first_host_on_the_daemons_nodes_too() -> None:
    """mpirun's daemons run in a step that lacks the first node, so that step's node list differs from the job's."""
    ranks = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_JOB_ID": "77"}
    daemon = {**ranks, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "h2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
    first_node = {**ranks, **BATCH}

    assert from_environ(daemon, "h2").board_host == "h1"
    assert from_environ(first_node, "h1").board_host == "h1"
    assert from_environ(daemon, "h2").token == from_environ(first_node, "h1").token


@pytest.mark.parametrize("environ, launcher", [(MPICH, "pmi"), (MVAPICH, "mvapich")])
def test_other_mpis_are_one_world(environ: dict[str, str], launcher: str) -> None:
    assert place(from_environ(environ, "vm")) == (launcher, 1, 2, 1, 2, "127.0.0.1")


def test_srun_with_pmi2_takes_the_local_rank_from_slurm() -> None:
    launch = from_environ({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_JOBID": "77.0"}, "h2")

    assert place(launch) == ("pmi", 3, 4, 1, 2, "h1")


def test_srun_with_pmix_takes_the_size_from_slurm() -> None:
    launch = from_environ({**STEP, "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.0"}, "h2")

    assert place(launch) == ("pmix", 3, 4, 1, 2, "h1")


def test_half_of_pmis_variables_beside_a_step_of_slurm_do_no_harm() -> None:
    assert place(from_environ({**STEP, "PMI_RANK": "3"}, "h2")) == ("slurm", 3, 4, 1, 2, "h1")


def test_pmix_without_a_size_says_what_to_set() -> None:
    assert "WORLD_SIZE" in error({"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}).hints[0]


def test_nobody_launched_us() -> None:
    assert place(from_environ({}, "vm")) == ("none", 0, 1, 0, 1, "127.0.0.1")
    assert from_environ({"HOME": "/root"}, "vm").token == ""


@pytest.mark.parametrize(
    "one_task",
    [
        {},
        {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "77.0"},
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.77.0"},
    ],
)
def test_a_step_of_one_task_is_a_shell_whatever_pmi_srun_adds(one_task: dict[str, str]) -> None:
    step = {**STEP, "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", **one_task}

    assert place(from_environ(step, "h1")) == ("none", 0, 1, 0, 1, "127.0.0.1")
    assert from_environ(step, "h1").job == "77"


def test_a_shell_in_an_allocation_of_one_task_is_nobodys_launch() -> None:
    assert from_environ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "SLURM_NNODES": "1"}, "h1").launcher == "none"


@pytest.mark.parametrize(
    "environ",
    [
        BATCH,
        without(BATCH, "SLURM_NTASKS"),
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_NNODES": "1"},
        {**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "h1", "SLURM_NTASKS": "8"},
    ],
    ids=["batch", "batch without ntasks", "salloc", "interactive step"],
)
def test_one_process_in_an_allocation_of_many_is_told_to_use_srun(environ: dict[str, str]) -> None:
    caught = error(environ)

    assert "not in a step" in caught.why
    assert "srun nccl-bench" in caught.hints[0]


def test_local_ranks_that_were_asked_for_run_in_a_batch_script_with_a_warning() -> None:
    launch = from_environ(BATCH, "h1", self_launch=True)

    assert launch.launcher == "none"
    assert "SLURM_NTASKS=4" in launch.warnings[0]


@pytest.mark.parametrize(
    "environ, missing, present",
    [
        ({"RANK": "0"}, "WORLD_SIZE", "RANK"),
        ({"WORLD_SIZE": "2"}, "RANK", "WORLD_SIZE"),
        ({"LOCAL_RANK": "1", "MASTER_ADDR": "h1"}, "RANK and WORLD_SIZE", "LOCAL_RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "MASTER_ADDR", "RANK and WORLD_SIZE"),
        ({"PMI_SIZE": "2"}, "PMI_RANK", "PMI_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ],
)
def test_missing_variables_are_named(environ: dict[str, str], missing: str, present: str) -> None:
    caught = error(environ)

    assert missing in caught.why
    assert present in caught.why


def test_a_partly_set_environment_is_fine_where_slurm_says_the_same() -> None:
    for extra in ({"WORLD_SIZE": "4"}, {"WORLD_SIZE": "4", "MASTER_ADDR": "h1"}, {"LOCAL_RANK": "1"}, {"RANK": "3"}):
        assert from_environ({**STEP, **extra}, "h2").launcher == "slurm"


@pytest.mark.parametrize(
    "environ, names",
    [
        ({**STEP, "RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "h1"}, ("RANK=0", "SLURM_PROCID=3")),
        ({**STEP, "WORLD_SIZE": "2"}, ("WORLD_SIZE=2", "SLURM_STEP_NUM_TASKS=4")),
        ({**STEP, "RANK": "0", "WORLD_SIZE": "1"}, ("WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=4")),
        ({**STEP, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, ("WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=4")),
        ({**STEP, "RANK": "3", "WORLD_SIZE": "16"}, ("WORLD_SIZE=16", "SLURM_STEP_NUM_TASKS=4")),
        ({**OPENMPI, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h1"}, ("WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=4")),
        ({**OPENMPI, "RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "h1"}, ("RANK=0", "OMPI_COMM_WORLD_RANK=3")),
        ({**STEP, "PMI_RANK": "0", "PMI_SIZE": "1"}, ("PMI_SIZE=1", "SLURM_STEP_NUM_TASKS=4")),
    ],
)
def test_launchers_that_contradict_are_both_named(environ: dict[str, str], names: tuple[str, str]) -> None:
    caught = error(environ)

    assert all(name in caught.why for name in names)


def test_torchrun_in_each_task_of_srun_is_torchruns_world() -> None:
    inside = {**STEP, **TORCHRUN, "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}

    assert place(from_environ(inside, "h2"))[:3] == ("torchrun", 9, 16)
    assert from_environ({**STEP, **TORCHRUN, "RANK": "0"}, "h2").rank == 0, "c10d deals ranks as it likes"


def test_variables_set_by_hand_in_a_wrapper_agree_with_srun() -> None:
    assert from_environ({**STEP, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h1"}, "h2").launcher == "torchrun"
    assert from_environ({**STEP, "RANK": "3", "WORLD_SIZE": "4"}, "h2").board_host == "h1"


@pytest.mark.parametrize(
    "environ, text",
    [
        ({**TORCHRUN, "RANK": "4"}, "RANK=4"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2 of 2"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, "WORLD_SIZE=4"),
        ({**TORCHRUN, "WORLD_SIZE": "four"}, "WORLD_SIZE='four'"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK='-1'"),
        ({**STEP, "SLURM_PROCID": "x"}, "SLURM_PROCID='x'"),
        (without(STEP, "SLURM_PROCID"), "SLURM_PROCID"),
        ({**STEP, "SLURM_STEP_NODELIST": "h[1-"}, "h[1-"),
        ({"RANK": "0", "WORLD_SIZE": "0", "MASTER_ADDR": "h1"}, "WORLD_SIZE=0"),
    ],
)
def test_impossible_numbers_are_named_with_their_variable(environ: dict[str, str], text: str) -> None:
    assert text in error(environ).why


def test_ranks_of_a_job_share_token_and_ports_and_other_jobs_have_others() -> None:
    jobs = {
        "torchrun": [TORCHRUN, {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}],
        "restarted": [{**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}],
        "other port": [{**TORCHRUN, "MASTER_PORT": "15473"}],
        "slurm": [STEP, {**STEP, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "h1"}],
        "next step": [{**STEP, "SLURM_STEP_ID": "1"}],
        "openmpi": [OPENMPI, {**OPENMPI, "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}],
        "openmpi again": [{**OPENMPI, "PMIX_NAMESPACE": "99"}],
    }

    found = {name: {(launch.token, launch.ports) for launch in map(from_environ, environs)} for name, environs in jobs.items()}

    assert all(len(values) == 1 for values in found.values())
    assert len(set().union(*found.values())) == len(jobs)


@given(st.text())
def test_ports_are_eight_different_ones_below_the_ephemeral_range(token: str) -> None:
    ports = candidate_ports(token)

    assert len(set(ports)) == 8
    assert all(20000 <= port <= 32767 for port in ports)
    assert ports == candidate_ports(token)


NAMES = [*TORCHRUN, *STEP, *OPENMPI, *MPICH, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"]


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["", "0", "1", "2", "4", "-1", "x", "h[1-2]", "2(x2)", "h1"])))
def test_any_environment_gives_a_place_in_a_world_or_a_launch_error(environ: dict[str, str]) -> None:
    try:
        launch = from_environ(environ, "h1")
    except LaunchError:
        return
    assert 0 <= launch.rank < launch.world_size


@pytest.mark.parametrize("rank, world", [(0, 4), (3, 4), (0, 1016), (3, 1016)])
def test_the_world_is_as_large_as_any_launcher_says(rank: int, world: int) -> None:
    environ = {**STEP, "SLURM_NTASKS": str(world), "SLURM_STEP_NUM_TASKS": str(world), "SLURM_PROCID": str(rank)}

    assert (from_environ(environ, "h2").rank, from_environ(environ, "h2").world_size) == (rank, world)


def test_slices_of_a_gpu_are_refused() -> None:
    with pytest.raises(LaunchError, match="MIG is not supported by NCCL for multi-GPU"):
        refuse_mig("MIG-5f4e0f4d-0f5c-5d1e-8b5a-0e2b8f1c2d3e", "rank 0 on h1")
    for fine in (None, "", "0,1", "GPU-5f4e0f4d"):
        refuse_mig(fine, "rank 0 on h1")
