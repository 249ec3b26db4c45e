// Models of the simulation: one 64-bit word per position of the parameter order.
//
// Training, initial values and the weighted mean are hashes of their inputs. A contribution that is
// applied twice, omitted, confused with another or applied in another order therefore gives other
// words and another digest. Digests add up over positions, like real ones.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "server/client/shard_span.h"
#include "tensor/interval.h"

namespace cadre::simulation {

// By position; 0 at positions that are not held.
using Words = std::vector<uint64_t>;

uint64_t Hash(uint64_t a, uint64_t b, uint64_t c = 0, uint64_t d = 0);

// First position of every tensor, then the number of parameters.
std::vector<int64_t> TensorBegins(const v1::RunSpec& spec);

// The initial model at the positions of `span`; its size is that of the whole model.
Words InitialWords(const v1::RunSpec& spec, Interval span);
// A word after the group has trained on so many samples.
uint64_t TrainedWord(uint64_t base, uint32_t group, uint32_t generation, uint64_t samples);
// Adds one term to a weighted mean.
uint64_t AddToMean(uint64_t sum, float weight, uint64_t word);

uint64_t DigestOf(const Words& words, const std::vector<Interval>& spans);

// The intervals that rank `rank` of `ranks` owns: a part of every tensor.
std::vector<Interval> OwnedSpans(const std::vector<int64_t>& begins, uint32_t rank, uint32_t ranks);
// The parts of `spans` inside `within`.
std::vector<Interval> PartsWithin(const std::vector<Interval>& spans, Interval within);
google::protobuf::RepeatedPtrField<v1::Range> RangesOf(const std::vector<int64_t>& begins,
                                                       const std::vector<Interval>& spans);

}  // namespace cadre::simulation
