// The host memory that a rank needs for the exchange with the aggregators: buffers for what it
// contributes and for the versions that it receives, what it carries over to later contributions,
// and copies of the optimizer's states, with which the next generation of its group may begin.
//
// The plan and member/averager, which allocates this memory, use the same formulas. Not counted:
// what one unit or one chunk needs while it is coded or transferred, messages between the ranks of
// a group and, on GPUs, the copies of weights and states on the host.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>

#include "model/parameter_index.h"
#include "plan/ownership.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// If the ranks of a group own more intervals of the parameter order than this, each exchanges one
// contiguous part of the model instead of what it owns.
inline constexpr int64_t kMaxOwnedIntervals = 1 << 14;

// The values that a rank exchanges with one aggregator, or with all.
struct ExchangedValues {
  int64_t elements = 0;
  // The size of the largest frame of a contribution, in words of 4 bytes; 0: they are not coded.
  int64_t frame_words = 0;
  // Whether they are one interval, so that values in fp32 are sent from where they are.
  bool contiguous = false;
  // Whether a device codes them, and keeps what is carried.
  bool on_device = false;
};

// Bytes of the buffers once a version has been adopted after a contribution; an upper bound with
// fragments.
int64_t ExchangeBufferBytes(const v1::Averaging& averaging, const ExchangedValues& values);

// Bytes of a rank in a group of `ranks` that keeps `tensors` tensors of `elements` values at every
// contribution, and settles them to one: at most those of two snapshots, each with the copy of
// another rank that has as many elements.
int64_t SettledBytes(int64_t elements, int tensors, int ranks);

// Bytes of what is carried over, where it survives the generation; 0 for a rank that is alone and
// has it in the buffers of the exchange.
int64_t CarriedBytes(const v1::Averaging& averaging, const ExchangedValues& values, int ranks);

// Bytes of the copies of optimizer states of which a rank owns this number of values, in groups of
// `ranks`. A rank that is alone copies them when it adopts a version or, with overlap, at each of
// the last two contributions; other ranks have both copies, and those of another rank.
int64_t StateCopyBytes(const v1::Averaging& averaging, int64_t values, int ranks);

// Bytes of one rank of a group of native workers; 0 if the run does not average. `buckets`: what
// the rank owns. `on_device`: whether the group's device codes contributions if the run allows it.
// An upper bound that is exact if there is one aggregator; the other ranks are taken to own as many
// intervals as this one (kMaxOwnedIntervals).
int64_t ExchangeBytes(const v1::RunSpec& spec, const ParameterIndex& index,
                      std::span<const BucketOwnership> buckets, int rank, int ranks,
                      bool on_device);

// About the same for each value that a rank owns, before its part of the model is known: values in
// fp32 are not one interval, and all tensors are coded.
double ExchangeBytesPerValue(const v1::RunSpec& spec, int ranks, bool on_device);

}  // namespace cadre
