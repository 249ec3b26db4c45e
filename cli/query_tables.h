// The coordinator's status as tables for people.
//
// Thread-safe (pure functions).
#pragma once

#include <google/protobuf/repeated_field.h>

#include <string>

#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// One table per kind of thing; "" where there is none of it.
std::string RunsTable(const google::protobuf::RepeatedPtrField<v1::RunStatus>& runs);
// How far each run's groups drift apart between averages, and what that advises.
std::string DiscrepancyTable(const google::protobuf::RepeatedPtrField<v1::RunStatus>& runs);
std::string GroupsTable(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups);
// How the groups' collectives are chosen, what was measured of their links, what came of it.
std::string CollectivesTable(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups);
// What a step of each group's plan was predicted to take and what it takes, part by part, and what
// was wrong with the prediction.
std::string PredictionsTable(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups);
// What each rank holds of parameters that are sharded over its group.
std::string ShardedTable(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups);
// Bytes of each rank by kind, and what the plan said they would be in all.
std::string MemoryTable(const google::protobuf::RepeatedPtrField<v1::GroupStatus>& groups);
std::string WorkersTable(const google::protobuf::RepeatedPtrField<v1::MemberStatus>& workers);
std::string AggregatorsTable(
    const google::protobuf::RepeatedPtrField<v1::AggregatorStatus>& aggregators);
std::string CountersTable(const google::protobuf::Map<std::string, uint64_t>& counters);

// Everything, for `cadre status`. `coordinator` is its address.
std::string StatusText(const v1::StatusReply& status, const std::string& coordinator);

// "0.42 (0.4 in the newest of 12 rounds): the groups agree: ..."; "" where groups do not average.
std::string DiscrepancyText(const v1::RunStatus& run);

// "data=1,model=2".
std::string MeshText(const v1::GroupStatus& group);

// "10.0 us, 1.25 GB/s, tcp"; "" before anything was measured.
std::string LinkText(const v1::GroupStatus& group);

// "4 buckets: ring 2, halving-doubling 2".
std::string BucketsText(const v1::GroupStatus& group);

// "-12%": the prediction of a step was so much shorter than the step; "" where either is not known.
std::string ErrorText(const v1::GroupStatus& group);

// "41 ms, 6% waiting"; "" before the first step.
std::string StepText(const v1::GroupStatus& group);

}  // namespace cadre
