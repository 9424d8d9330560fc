// SPDX-License-Identifier: GPL-2.0
/*
 * Marks the file-system metadata of a guest, so that the host can tell it from data.
 *
 * A file system gives its metadata bios the flag REQ_META. The flag ends at the block layer; the
 * priority word of a bio goes on to the virtio device. This module sets the hint 0x60 in that word
 * (bits 3 to 12) for bios with REQ_META. Linux itself uses the hints 1 to 7. Level and class stay as
 * they would have been, so no scheduler of the guest treats the request otherwise.
 *
 * The probe runs at the tracepoint block_bio_queue. submit_bio has set the word of every bio by then: to
 * the priority of the task, or, if the task has none of its own, to the one that its nice value
 * stands for. Left alone is a bio
 *   - of a task that has a priority of its own: the journal thread of ext4 (jbd2), ionice;
 *   - with another priority than the default of the task: its submitter chose it.
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/iocontext.h>
#include <linux/ioprio.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/tracepoint.h>

/* What flowstone_block::IoPriority::METADATA_HINT says on the host. */
#define METADATA_HINT 0x60
#define HINT_SHIFT 3

struct counts {
	unsigned long tagged;
	unsigned long own_priority;
};

static DEFINE_PER_CPU(struct counts, counts);
static struct tracepoint *bio_queue;

static bool has_own_priority(struct task_struct *task)
{
	struct io_context *context = task->io_context;

	return context && IOPRIO_PRIO_CLASS(context->ioprio) != IOPRIO_CLASS_NONE;
}

/* The word that submit_bio gives the bios of a task without a priority of its own. */
static unsigned short default_word(struct task_struct *task)
{
	return IOPRIO_PRIO_VALUE(task_nice_ioclass(task), task_nice_ioprio(task));
}

static void tag(void *unused, struct bio *bio)
{
	unsigned short word = default_word(current);
	bool is_default;

	if (!(bio->bi_opf & REQ_META))
		return;
	is_default = bio->bi_ioprio == word ||
		     IOPRIO_PRIO_CLASS(bio->bi_ioprio) == IOPRIO_CLASS_NONE;
	if (has_own_priority(current) || !is_default) {
		this_cpu_inc(counts.own_priority);
		return;
	}
	bio->bi_ioprio = word | METADATA_HINT << HINT_SHIFT;
	this_cpu_inc(counts.tagged);
}

static int show_counts(char *buffer, const struct kernel_param *unused)
{
	unsigned long tagged = 0, own_priority = 0;
	int cpu;

	for_each_possible_cpu(cpu) {
		tagged += per_cpu(counts.tagged, cpu);
		own_priority += per_cpu(counts.own_priority, cpu);
	}
	return sysfs_emit(buffer, "tagged=%lu own_priority=%lu\n", tagged, own_priority);
}

static const struct kernel_param_ops stats_ops = { .get = show_counts };
module_param_cb(stats, &stats_ops, NULL, 0444);
MODULE_PARM_DESC(stats, "metadata bios that were tagged, and that have a priority of their own");

static void find_bio_queue(struct tracepoint *candidate, void *unused)
{
	if (!strcmp(candidate->name, "block_bio_queue"))
		bio_queue = candidate;
}

static int __init hint_init(void)
{
	for_each_kernel_tracepoint(find_bio_queue, NULL);
	if (!bio_queue) {
		pr_err("flowstone_hint: this kernel has no tracepoint block_bio_queue\n");
		return -ENOENT;
	}
	return tracepoint_probe_register(bio_queue, (void *)tag, NULL);
}

static void __exit hint_exit(void)
{
	tracepoint_probe_unregister(bio_queue, (void *)tag, NULL);
	/* No CPU runs the probe any more when its code goes. */
	tracepoint_synchronize_unregister();
}

module_init(hint_init);
module_exit(hint_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Marks file-system metadata for the Flowstone host");
