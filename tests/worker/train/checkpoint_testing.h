// Ranks that own a model in various partitions, for the tests of checkpoints.
#pragma once

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/optimizer_state.h"
#include "model/parameter_index.h"
#include "tests/base/expect.h"
#include "tests/member/group_ranks.h"
#include "worker/train/checkpoint.h"

namespace cadre {

// How positions are divided among ranks.
struct Partition {
  int ranks = 1;
  // Intervals of this size are assigned in turn; 0: one interval of nearly equal size for each
  // rank.
  int64_t stripe = 0;
};

inline void PrintTo(const Partition& partition, std::ostream* out) {
  *out << partition.ranks << " ranks, stripes of " << partition.stripe;
}

inline std::vector<Interval> IntervalsOf(const Partition& partition, int64_t size, int rank) {
  if (partition.stripe == 0) {
    return {{PartBegin(size, rank, partition.ranks), PartBegin(size, rank + 1, partition.ranks)}};
  }
  std::vector<Interval> ranges;
  for (int64_t begin = rank * partition.stripe; begin < size;
       begin += partition.ranks * partition.stripe) {
    ranges.push_back({begin, std::min(size, begin + partition.stripe)});
  }
  // The order of intervals does not matter.
  std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

inline v1::RunSpec SmallSpec(const std::string& optimizer = "adamw {}", int features = 5) {
  auto spec = Parse<v1::RunSpec>(R"(
    name: "small"
    seed: 11
    model {
      input { channels: 1 height: 6 width: 6 }
      layer { name: "conv" convolution { out_channels: 3 kernel: 3 padding: 1 } }
      layer { name: "norm" batch_norm {} }
      layer { name: "relu" relu {} }
      layer { name: "hidden" fully_connected { out_features: 5 } }
      layer { name: "fc" fully_connected { out_features: 4 } }
      layer { name: "loss" softmax_cross_entropy {} }
    })");
  *spec.mutable_optimizer() = Parse<v1::Optimizer>(optimizer);
  spec.mutable_model()->mutable_layer(3)->mutable_fully_connected()->set_out_features(features);
  return spec;
}

inline ParameterIndex IndexOf(const v1::RunSpec& spec) {
  absl::StatusOr<ParameterIndex> index = ParameterIndex::FromModel(spec.model());
  CHECK(index.ok()) << index.status();
  return *std::move(index);
}

// One rank's values, in lists: list 0 contains the weights, list i the optimizer's state tensor
// i - 1.
class OwnedValues {
 public:
  OwnedValues(const ParameterIndex& index, const v1::Optimizer& optimizer,
              std::vector<Interval> ranges)
      : index_(index), ranges_(std::move(ranges)) {
    const size_t lists = 1 + OptimizerStateNames(optimizer).size();
    int64_t count = 0;
    for (const Interval& range : ranges_) count += range.size();
    memory_.assign(lists, std::vector<float>(count, -1.0F));
  }

  CheckpointValues values() {
    CheckpointValues values{List(0), {}};
    for (size_t i = 1; i < memory_.size(); ++i) values.states.push_back(List(i));
    return values;
  }

  // The value of a position in a list, for `seed`.
  static float ValueAt(int64_t position, size_t list, int seed) {
    return position + 0.125F * list + 1000.0F * seed;
  }
  void Fill(int seed) {
    ForEach([&](float& value, int64_t position, size_t list) {
      value = ValueAt(position, list, seed);
    });
  }
  // Running statistics have no state; it is loaded as zero.
  void ExpectFilled(int seed, bool with_states = true) {
    ForEach([&](float& value, int64_t position, size_t list) {
      float expected = ValueAt(position, list, seed);
      if (list > 0 && IsStatistic(RoleAt(position))) expected = 0;
      if (list > 0 && !with_states) expected = -1;
      ASSERT_EQ(value, expected) << position << " of list " << list;
    });
  }

 private:
  std::vector<Owned> List(size_t list) {
    std::vector<Owned> owned;
    int64_t begin = 0;
    for (const Interval& range : ranges_) {
      owned.push_back({range, std::span(memory_[list]).subspan(begin, range.size())});
      begin += range.size();
    }
    return owned;
  }
  void ForEach(const std::function<void(float&, int64_t, size_t)>& use) {
    for (size_t list = 0; list < memory_.size(); ++list) {
      for (const Owned& owned : List(list)) {
        for (int64_t i = 0; i < owned.positions.size(); ++i) {
          use(owned.values[i], owned.positions.begin + i, list);
        }
      }
    }
  }
  ParameterRole RoleAt(int64_t position) const {
    for (const Parameter& p : index_.parameters()) {
      if (position < p.end()) return p.role;
    }
    return ParameterRole::kWeight;
  }

  const ParameterIndex& index_;
  const std::vector<Interval> ranges_;
  std::vector<std::vector<float>> memory_;
};

// Calls the body on a thread per rank, with the rank's values.
inline void OnOwners(const Partition& partition, const ParameterIndex& index,
                     const v1::Optimizer& optimizer,
                     const std::function<void(Communicator&, OwnedValues&)>& body) {
  OnGroup(partition.ranks, [&](Communicator& group) {
    OwnedValues owned(index, optimizer, IntervalsOf(partition, index.size(), group.index()));
    body(group, owned);
  });
}

}  // namespace cadre
