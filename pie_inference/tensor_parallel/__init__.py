"""One model on several devices of a machine: a worker that is a group of processes.

Theory. Each process is a rank: it has a share of the weights and of every page, runs every wave, and meets the others
in collective operations (`collectives`: NCCL between GPUs, gloo between CPU processes). Rank 0, the leader, speaks to
the control process. It starts the other ranks, the followers, and sends them each wave before it runs the wave itself
(`group`). A follower only runs waves (`serving.follower`).

Waves travel over a socket pair for each follower (`channel`): 41 us there and back for 2 KB, against 105 us over ZeroMQ
and 512 us for gloo's broadcast. A socket pair also closes when either process ends.

On CPUs this is for tests and for models that do not fit one process, not for speed: a small all_reduce through gloo
took 0.4 to 1 ms, so the demo model took 18 ms for a token on 2 ranks, and 1.4 ms on one.

All ranks compute from equal inputs: sums and gathered logits have the same bytes, and sampled tokens are the leader's.
So a command that breaks the protocol fails on all ranks, in the same place. A failure on some ranks only (one device
runs out of memory) leaves the others in an operation that never ends. So ranks meet at each failure before they go on
(`agreement`), and a group that disagrees ends. A group also ends with any of its processes; the control layer then
starts a new one.
"""
