// Models of the simulation: a few values, which training replaces by a hash of what it depends on.
// A contribution that is applied twice, omitted, confused with another or weighted otherwise gives
// another mean and another digest. Initial values, means and digests are the real ones.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "model/exchange_units.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "server/client/shard_span.h"
#include "tensor/interval.h"

namespace cadre::simulation {

// By position; 0 at positions that are not held.
using Values = std::vector<float>;

// First position of every tensor, then the number of parameters.
std::vector<int64_t> TensorBegins(const v1::RunSpec& spec);

Values InitialValues(const v1::RunSpec& spec);
// A value after the group has trained on so many samples.
float TrainedValue(float base, uint32_t group, uint32_t generation, uint64_t samples);

uint64_t DigestOf(const Values& values, const std::vector<Interval>& spans);

// The units of the model, if rounds of the run are coded; otherwise null.
std::shared_ptr<const ExchangeUnits> UnitsOf(const v1::RunSpec& spec);
// The interval that shard `shard` of `shards` stores.
Interval SpanOfShard(const v1::RunSpec& spec, uint32_t shard, uint32_t shards);
// The intervals that rank `rank` of `ranks` exchanges: a part of every tensor or, in coded rounds,
// one of whole units.
std::vector<Interval> OwnedSpans(const v1::RunSpec& spec, uint32_t rank, uint32_t ranks);
// The parts of `spans` inside `within`.
std::vector<Interval> PartsWithin(const std::vector<Interval>& spans, Interval within);
google::protobuf::RepeatedPtrField<v1::Range> RangesOf(const std::vector<int64_t>& begins,
                                                       const std::vector<Interval>& spans);

}  // namespace cadre::simulation
