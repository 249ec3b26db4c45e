// Models of the simulation: a few values, which every step of training changes by a number of its
// own for each group, generation and position. A contribution that is applied twice, omitted,
// confused with another or weighted otherwise gives another mean and another digest; one that
// contains a step twice, or lacks one, differs from the version before by another multiple. Initial
// values, means and digests are the real ones.
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

// More than the positions of a model.
inline constexpr int64_t kStateOfRound = 64;

// By position; 0 at positions that are not held.
using Values = std::vector<float>;

// First position of every tensor, then the number of parameters.
std::vector<int64_t> TensorBegins(const v1::RunSpec& spec);

Values InitialValues(const v1::RunSpec& spec);
// What one step adds to the value at a position: at least 1/8, at most 1, or the negative of that.
float StepChange(uint32_t group, uint32_t generation, int64_t position);
// The optimizer's state at a position, once a rank has trained for the round.
inline float StateOf(int64_t position, uint32_t round) {
  return static_cast<float>(position + 1 + kStateOfRound * round);
}
// Whether it is the state of this position.
inline bool IsStateOf(int64_t position, float state) {
  return static_cast<int64_t>(state) % kStateOfRound == position + 1;
}
// The round of a state.
inline uint32_t RoundOfState(float state) {
  return static_cast<uint32_t>(static_cast<int64_t>(state) / kStateOfRound);
}

uint64_t DigestOf(const Values& values, const std::vector<Interval>& spans);

// The units of the model, if rounds of the run are coded or exchange fragments; otherwise null.
std::shared_ptr<const ExchangeUnits> UnitsOf(const v1::RunSpec& spec);
// The interval that shard `shard` of `shards` stores.
Interval SpanOfShard(const v1::RunSpec& spec, uint32_t shard, uint32_t shards);
// The intervals that rank `rank` of `ranks` exchanges: a part of every tensor or, if whole units
// are exchanged, one of these.
std::vector<Interval> OwnedSpans(const v1::RunSpec& spec, uint32_t rank, uint32_t ranks);
// The positions that a round exchanges: all, or those of a fragment.
std::vector<Interval> PositionsOf(const v1::RunSpec& spec, uint32_t fragment);
// The parts of `spans` inside `within`.
std::vector<Interval> PartsWithin(const std::vector<Interval>& spans, Interval within);
google::protobuf::RepeatedPtrField<v1::Range> RangesOf(const std::vector<int64_t>& begins,
                                                       const std::vector<Interval>& spans);

}  // namespace cadre::simulation
