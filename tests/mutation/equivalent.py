"""Mutants that no test can find, because they behave like the original. run.py does not draw them.

Each entry was reviewed. `text` is a part of the source line, `before` the mutated expression (run.py --list shows
it), and `after` what the mutant makes of it.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Equivalent:
    path: str
    text: str
    before: str
    after: str
    reason: str
    # Number of places in the source that it is about.
    sites: int = 1

    def fits(self, path, text, before, after):
        def flat(code):
            return " ".join(code.split())

        return (path == self.path and self.text in text and flat(before) == flat(self.before) and
                flat(after) == flat(self.after))


EQUIVALENT = (
    Equivalent("member/rank_protocol.cc", "const bool agrees", "step_ < next_step_", "step_ <= next_step_",
               "where both are equal, the next operand, agree < next_step_ - step_, is false"),
    Equivalent("coordinator/run/stale_record.cc", "if (!report.has_open()",
               "!report.has_open() || report.open().lineage() != run.record().lineage()",
               "report.open().lineage() != run.record().lineage()",
               "without an order the lineage is empty, which that of no run is"),
    Equivalent("coordinator/run/run.cc", "const bool due = known", "known && EvaluationDue(record(), step)",
               "EvaluationDue(record(), step)", "no evaluation is due in a run without samples: EvaluationDue says so"),
    Equivalent("coordinator/machine/machine_status.cc", "uint32_t group = 0;", "0", "1",
               "the first page begins before run 1, because no run has the number 0"),
    Equivalent("member/state_vault.cc", "int64_t received = 0;", "0", "1",
               "one more value at the end of the memory of a snapshot, which no position refers to"),
    Equivalent("base/stream_slots.cc", "by_peer_.erase(of_peer)", "by_peer_.erase(of_peer);", ";",
               "a number of 0 is the same as none"),
    Equivalent("coordinator/cluster/worker_counts.cc", "counts.erase(key)", "counts.erase(key);", ";",
               "a number of 0 is the same as none"),
    Equivalent("coordinator/machine/machine.cc", "const uint64_t number = (uint64_t{", "32", "33",
               "numbers of traces of different starts differ as well"),
    Equivalent("coordinator/cluster/run_queue.cc", "KeyOf(a) < KeyOf(b)", "KeyOf(a) < KeyOf(b)", "KeyOf(a) <= KeyOf(b)",
               "the keys of two runs differ"),
    Equivalent("coordinator/run/prediction_error_cause.cc", "const double sign", "1", "2",
               "what is compared is twice as large on both sides"),
    Equivalent("coordinator/run/prediction_error_cause.cc", "const double sign", "-1", "-2",
               "what is compared is twice as large on both sides"),
    Equivalent("coordinator/run/prediction_error_cause.cc", "const double sign", "measured.step() > predicted.step()",
               "measured.step() >= predicted.step()", "equal step times are within the bound"),
    Equivalent("coordinator/run/prediction_error_cause.cc", "whole > 0 ?", "whole > 0", "whole >= 0",
               "a difference of 0 has no part that explains it, which the line before says"),
    Equivalent("coordinator/run/prediction_error_cause.cc", "kPredictionBound) return",
               "std::abs(PredictionError(predicted, measured)) <= kPredictionBound",
               "std::abs(PredictionError(predicted, measured)) < kPredictionBound",
               "no quotient minus 1 equals the double 0.2, whose last digits a number near 1 does not have"),
    Equivalent("coordinator/run/attribution.cc", "AwaitsUnknownHost()", "1", "2",
               "all hosts that report are known, so one more is as far out of reach as two"),
    Equivalent("coordinator/run/run_groups_planning.cc", "if (slot.ranks() >= requested",
               "slot.ranks() >= requested || record_.state() != v1::RUN_STATE_RUNNING",
               "record_.state() != v1::RUN_STATE_RUNNING",
               "a group of the requested size finds no larger one below; the condition saves the search"),
    Equivalent("coordinator/run/run_groups_planning.cc", "if (slot.ranks() >= requested",
               "slot.ranks() >= requested", "slot.ranks() > requested",
               "a group of the requested size finds no larger one below; the condition saves the search"),
    Equivalent("server/order_queue.cc", "all.resize(kMaxDelayedOrders)", "all.size() > kMaxDelayedOrders",
               "all.size() >= kMaxDelayedOrders", "a list of this size stays as it is"),
    Equivalent("coordinator/machine/deleted_runs.cc", "rank(a) < rank(b)", "rank(a) < rank(b)", "rank(a) <= rank(b)",
               "the numbers of two runs differ"),
    Equivalent("coordinator/run/stored_run.cc", "if (record_.warnings_size()", "record_.warnings_size() >= kMaxWarnings",
               "record_.warnings_size() > kMaxWarnings",
               "the last warning is followed by the one that says so, in the same call"),
    Equivalent("coordinator/run/prediction_error_cause.cc", "double predicted = 0;", "0", "1",
               "every object has a value for it"),
    Equivalent("coordinator/run/prediction_error_cause.cc", "double measured = 0;", "0", "1",
               "every object has a value for it"),
    Equivalent("coordinator/run/round_screening.cc", "if (!screen ||", "false", "true",
               "SendApplies sends nothing to shards that have applied the attempt, and Advance finishes the commit"),
    Equivalent("coordinator/cluster/programs.cc", "a.second.record.last_heard_ms() <",
               "a.second.record.last_heard_ms() < b.second.record.last_heard_ms()",
               "a.second.record.last_heard_ms() <= b.second.record.last_heard_ms()",
               "any of the ranks that were heard first may be forgotten"),
    Equivalent("coordinator/cluster/run_queue.cc", "absl::c_sort(ends", "a->end < b->end", "a->end <= b->end",
               "any of the runs that end at the same time may be named"),
    Equivalent("coordinator/run/history.cc", "for (int level = 0; age < newest()", "age < newest()", "age <= newest()",
               "no entry has the number 0"),
    Equivalent("coordinator/run/group_planner.cc", "rules_.size() >= kMaxKept", "rules_.size() >= kMaxKept",
               "rules_.size() > kMaxKept", "a cache with one more entry"),
    Equivalent("coordinator/run/group_planner.cc", "models_.size() >= kMaxKept", "models_.size() >= kMaxKept",
               "models_.size() > kMaxKept", "a cache with one more entry"),
    Equivalent("coordinator/machine/runs.cc", "deadline_of_.erase(before)", "deadline_of_.erase(before);", ";",
               "the next call erases a deadline that is not there any more"),
    *(Equivalent("member/shard_exchange.cc", "const uint64_t seed", before, after,
                 "a seed of the waits before retries may be any number")
      for before, after in (("32", "0"), ("32", "33"), ("32", "64"), ("64", "0"), ("64", "65"), ("64", "128"))),
    *(Equivalent("coordinator/run/group_planner.cc", text, before, after,
                 "the names of the two kinds of devices differ as well")
      for text, before, after in (
          ("const bool cuda = worker", "worker.device_kind() == v1::Cluster::CUDA",
           "worker.device_kind() != v1::Cluster::CUDA"),
          ("return cuda ?", "cuda", "!(cuda)"))),
    *(Equivalent("coordinator/run/group_planner.cc", "while (bytes / unit", before, after,
                 "a size that begins with 128 units is rounded to the same number by units of twice the size")
      for before, after in (("bytes / unit >= 128", "bytes / unit > 128"), ("128", "129"))),
    Equivalent("coordinator/run/aggregators.cc", "++shard) {", "shard < shards_.size()", "shard <= shards_.size()",
               "no aggregator owns a shard of this number, and it accepts nothing", sites=2),
    Equivalent("coordinator/cluster/measurements.cc", "a.second.order < b.second.order",
               "a.second.order < b.second.order", "a.second.order <= b.second.order",
               "the numbers of two entries differ", sites=2),
    *(Equivalent("coordinator/run/shard_placement.cc", text, before, before.replace(" < ", " <= "),
                 "the names of two aggregators differ")
      for text, before in (
          ("return std::tuple(-FreeOf(a)", "std::tuple(-FreeOf(a), a.name) < std::tuple(-FreeOf(b), b.name)"),
          ("best == nullptr", "order(one) < order(*best)"))),
    Equivalent("server/order_queue.cc", "return a.second.delay.since", "a.second.delay.since < b.second.delay.since",
               "a.second.delay.since <= b.second.delay.since",
               "any of the orders that were begun at the same time may be named"),
)
