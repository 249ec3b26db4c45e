"""Bugs that were planted by hand, each of which the simulation should find in 500 seeds (run.py --planted).

`old` is an expression or statements of the source, which is there once; the mutant has `new` in their place.

Those with a number or a letter are the bugs that a review of the protocol planted or named; "fragment-of-next-version"
is one more. The review's (i), SQLite without full synchronization, is not here: the simulation's store is in memory,
and tests/coordinator/store has the store's own tests. Its (h) and (k) are planted into what programs and simulation
share, because the code that they name has counterparts in the simulation.
"""

import dataclasses

ROUNDS = "coordinator/run/run_rounds.cc"
VERSIONS = "coordinator/run/run_versions.cc"


@dataclasses.dataclass(frozen=True)
class Bug:
    name: str
    path: str
    old: str
    new: str
    # The text directly before `old`, where `old` alone is in the source several times.
    after: str = ""


BUGS = (
    Bug("1-leases-not-extended", "coordinator/cluster/membership.cc", "member.lease_until += length;", ";"),
    Bug("2-loader-awaited-for-ever", VERSIONS, """(found != away.end() && found->second <= cluster_.now()) ||
           (watch.has_value() && watch->pause() > kMaxLoadPause)""", "false"),
    Bug("4-repeated-contribution-refused", ROUNDS, "run_.Includes(slot, round)", "false"),
    Bug("5-min-groups-ignored", "coordinator/run/round.cc", "std::max(1U, options_.min_groups)", "1U"),
    Bug("8-weight-of-group-0-tripled", "coordinator/run/round.cc", "participant.set_samples(contributed.samples());",
        "participant.set_samples(contributed.samples() * (group == 0 ? 3 : 1));"),
    Bug("14-boundary-one-step-late", "coordinator/run/run_rules.cc",
        "Clamp(uint64_t{step} + StepsOfRound(run.spec().averaging()))",
        "Clamp(uint64_t{step} + StepsOfRound(run.spec().averaging()) + 1)"),
    Bug("15-one-key-for-all-generations", "coordinator/cluster/journal.cc", 'absl::StrCat("generation ", generation)',
        'std::string("generation ")'),
    Bug("16-version-of-starting-group-not-protected", "coordinator/run/run_groups.cc",
        "if (run_.averages()) rounds_.versions().SetLoading(slot.group(), record_.version());", ""),
    Bug("17-loaded-version-not-protected", VERSIONS, "loaded.insert(version);", ";"),
    Bug("18-success-clears-no-standing", "coordinator/cluster/standing.cc",
        "ClearFailures({worker.host, worker.name});\n  ClearFailures({worker.host, \"\"});", ""),
    Bug("20-samples-of-run-wrong", ROUNDS, "record_.set_samples(record_.samples() + commit.samples());",
        "record_.set_samples(record_.samples() + commit.samples() + 1);"),
    Bug("21-fenced-contribution-stays", ROUNDS, "round_.End(group);\n  versions_.EndLoading(group);",
        "versions_.EndLoading(group);"),
    Bug("22-step-of-version-not-largest", "coordinator/run/round.cc", "std::max(commit.step(), contributed.step())",
        "contributed.step()"),
    Bug("23-restored-shard-with-wrong-digest", "coordinator/run/commits.cc",
        "newest_.has_value() ? cadre::DigestOf(*newest_, shard) : std::nullopt", "std::optional<uint64_t>()"),
    Bug("24-decision-says-not-included", ROUNDS, "run_.Includes(slot, decision.round())", "false"),
    Bug("a-states-of-later-version", "member/state_vault.cc", "DropFrom(version + 1);", ";",
        after="StateVault::Restore(uint32_t version, States* states, Communicator& group) {\n  "),
    Bug("b-division-one-step-off", "coordinator/run/commit_rules.cc",
        "DivideFrom(division, step, groups, BatchOf(run.spec()))",
        "DivideFrom(division, step + 1, groups, BatchOf(run.spec()))"),
    Bug("c-delete-of-other-lineage", "coordinator/machine/deleted_runs.cc",
        "found != runs_.end() && found->second.lineage() == lineage", "found != runs_.end()"),
    Bug("d-seed-counts-as-participant", "coordinator/run/adoption.cc",
        "if (!order.seed()) *commit.mutable_participants() = order.participants();",
        "*commit.mutable_participants() = order.participants();"),
    Bug("e-residual-of-version-before", "member/averager.cc", "options_.residuals->Restore(version, &carried, group())",
        "options_.residuals->Restore(version - 1, &carried, group())"),
    Bug("f-carried-change-weighted-twice", "member/kept_change.cc", "static_cast<float>(late)",
        "2.0F * static_cast<float>(late)", after="std::pow(weight, "),
    Bug("g-fragment-merged-elsewhere", "member/shard_values.cc", "merged[span.p + k] = value;",
        "merged[contribution.fragment > 0 && k > 0 ? span.p + k - 1 : span.p + k] = value;"),
    Bug("h-last-slot-leaks", "base/stream_slots.cc", "holders_.erase(holder);",
        "if (std::ssize(holders_) < max_) holders_.erase(holder);"),
    Bug("j-epoch-not-raised", "coordinator/cluster/journal.cc",
        "std::max(meta_.epoch() + 1, epoch)", "meta_.epoch() > 0 ? meta_.epoch() : epoch"),
    Bug("k-failed-order-not-repeated", "server/order_queue.cc",
        "failed_.insert_or_assign(subject, Retry{std::move(order), now + options_.retry_wait});", ";"),
    Bug("l-stats-of-other-run", "server/ledger.cc", "stored->stats",
        "[&] { for (const auto& [id, other] : runs_) { if (other.current) return other.current->stats; } "
        "return stored->stats; }()", after="return AlreadyApplied{"),
    Bug("m-key-of-other-group", "coordinator/run/shard_orders.cc",
        "(*open.mutable_keys())[slot.group()] = KeyOf(slot)", "(*open.mutable_keys())[0] = KeyOf(slot)"),
    Bug("n-searched-plans-forgotten", "coordinator/cluster/plan_searches.cc",
        "search.plans = found.plans;", ""),
    Bug("o-part-of-evaluation-twice", "coordinator/run/evaluation.cc", "correct += part.correct();",
        "correct += 2 * part.correct();"),
    Bug("fragment-of-next-version", ROUNDS, "FragmentAfter(record, record.version())",
        "FragmentAfter(record, record.version() + 1)"),
)
