// Models made up for the simulation: one 64-bit word per position of the parameter order.
//
// What training, the initial values and the weighted mean make of them are hashes of all that goes
// in, so that a contribution applied twice, left out, mixed up or taken in another order shows as
// other words, and thereby as another digest. Digests add up over positions, as the real ones do.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "server/client/shard_span.h"

namespace cadre::simulation {

// By flat position; where only a part is held, the rest is 0.
using Words = std::vector<uint64_t>;

uint64_t Hash(uint64_t a, uint64_t b, uint64_t c = 0, uint64_t d = 0);

// Flat position of every tensor, then the number of parameters.
std::vector<uint64_t> TensorBegins(const v1::RunSpec& spec);

uint64_t InitialWord(const v1::RunSpec& spec, uint64_t position);
// What the group makes of a word in so many samples.
uint64_t TrainedWord(uint64_t base, uint32_t group, uint32_t generation, uint64_t samples);
// One more term of a weighted mean.
uint64_t AddToMean(uint64_t sum, float weight, uint64_t word);

uint64_t DigestOf(const Words& words, const std::vector<FlatSpan>& spans);

// What rank `rank` of `ranks` owns: a part of every tensor.
std::vector<FlatSpan> OwnedSpans(const std::vector<uint64_t>& begins, uint32_t rank,
                                 uint32_t ranks);
// The parts of `spans` inside `within`.
std::vector<FlatSpan> Intersect(const std::vector<FlatSpan>& spans, FlatSpan within);
google::protobuf::RepeatedPtrField<v1::Range> RangesOf(const std::vector<uint64_t>& begins,
                                                       const std::vector<FlatSpan>& spans);

}  // namespace cadre::simulation
