"""Bugs that were planted by hand, each of which the simulation should find in 500 seeds (run.py --planted).

`old` is an expression or statements of the source, which is there once; the mutant has `new` in their place.
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


BUGS = (
    Bug("leases-not-extended", "coordinator/cluster/membership.cc", "member.lease_until += length;", ";"),
    Bug("loader-awaited-for-ever", VERSIONS, """(found != away.end() && found->second <= cluster_.now()) ||
           (watch.has_value() && watch->pause() > kMaxLoadPause)""", "false"),
    Bug("repeated-contribution-refused", ROUNDS, "run_.Includes(slot, round)", "false"),
    Bug("min-groups-ignored", "coordinator/run/round.cc", "std::max(1U, options_.min_groups)", "1U"),
    Bug("weight-of-group-0-tripled", "coordinator/run/round.cc", "participant.set_samples(contributed.samples());",
        "participant.set_samples(contributed.samples() * (group == 0 ? 3 : 1));"),
    Bug("boundary-one-step-late", "coordinator/run/run_rules.cc",
        "Clamp(uint64_t{step} + StepsOfRound(run.spec().averaging()))",
        "Clamp(uint64_t{step} + StepsOfRound(run.spec().averaging()) + 1)"),
    Bug("one-key-for-all-generations", "coordinator/cluster/journal.cc", 'absl::StrCat("generation ", generation)',
        'std::string("generation ")'),
    Bug("version-of-starting-group-not-protected", "coordinator/run/run_groups.cc",
        "if (run_.averages()) rounds_.versions().SetLoading(slot.group(), record_.version());", ""),
    Bug("loaded-version-not-protected", VERSIONS, "loaded.insert(version);", ";"),
    Bug("success-clears-no-standing", "coordinator/cluster/standing.cc",
        "ClearFailures({worker.host, worker.name});\n  ClearFailures({worker.host, \"\"});", ""),
    Bug("samples-of-run-wrong", ROUNDS, "record_.set_samples(record_.samples() + commit.samples());",
        "record_.set_samples(record_.samples() + commit.samples() + 1);"),
    Bug("fenced-contribution-stays", ROUNDS, "round_.End(group);\n  versions_.EndLoading(group);",
        "versions_.EndLoading(group);"),
    Bug("step-of-version-not-largest", "coordinator/run/round.cc", "std::max(commit.step(), contributed.step())",
        "contributed.step()"),
    Bug("restored-shard-with-wrong-digest", "coordinator/run/aggregators_restore.cc",
        "committed.has_value() && *committed != applied.digest()", "false"),
    Bug("decision-says-not-included", ROUNDS, "run_.Includes(slot, decision.round())", "false"),
    Bug("states-of-later-version", "member/state_vault.cc",
        "snapshots_.empty() ? nullptr : &snapshots_.front()",
        "snapshots_.empty() ? nullptr : &snapshots_.back()"),
    Bug("division-one-step-off", ROUNDS, "DivideFrom(division, step, groups, BatchOf(run.spec()))",
        "DivideFrom(division, step + 1, groups, BatchOf(run.spec()))"),
    Bug("delete-of-other-lineage", "coordinator/machine/deleted_runs.cc",
        "found != runs_.end() && found->second.lineage() == lineage", "found != runs_.end()"),
    Bug("seed-counts-as-participant", "coordinator/run/adoption.cc",
        "if (!order.seed()) *commit.mutable_participants() = order.participants();",
        "*commit.mutable_participants() = order.participants();"),
    Bug("fragment-of-next-version", ROUNDS, "FragmentAfter(record, record.version())",
        "FragmentAfter(record, record.version() + 1)"),
    Bug("epoch-not-raised", "coordinator/cluster/journal.cc",
        "std::max(meta_.epoch() + 1, static_cast<uint64_t>(absl::ToUnixMillis(now_)))",
        "meta_.epoch() > 0 ? meta_.epoch() : static_cast<uint64_t>(absl::ToUnixMillis(now_))"),
    Bug("key-of-other-group", "coordinator/run/aggregators.cc",
        "(*open.mutable_keys())[slot.group()] = KeyOf(slot)", "(*open.mutable_keys())[0] = KeyOf(slot)"),
    Bug("part-of-evaluation-twice", "coordinator/run/evaluation.cc", "correct += part.correct();",
        "correct += 2 * part.correct();"),
    Bug("searched-plans-forgotten", "coordinator/run/group_planner.cc", "search->second = found.plans;", ""),
)
