// Ranks that own a model in one way or another, for the tests of checkpoints.
#pragma once

#include <glog/logging.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "model/optimizer_state.h"
#include "model/parameter_index.h"
#include "tests/worker/transport/ranks.h"
#include "worker/comm/communicator.h"
#include "worker/train/checkpoint.h"

namespace cadre {

// How positions are dealt to the ranks.
struct Dealing {
  int ranks = 1;
  // Pieces of so many positions go round; 0: one near-equal piece each.
  int64_t stripe = 0;
};

inline void PrintTo(const Dealing& dealing, std::ostream* out) {
  *out << dealing.ranks << " ranks, stripes of " << dealing.stripe;
}

inline std::vector<Interval> Deal(const Dealing& dealing, int64_t size, int rank) {
  if (dealing.stripe == 0) {
    return {{PartBegin(size, rank, dealing.ranks), PartBegin(size, rank + 1, dealing.ranks)}};
  }
  std::vector<Interval> ranges;
  for (int64_t begin = rank * dealing.stripe; begin < size;
       begin += dealing.ranks * dealing.stripe) {
    ranges.push_back({begin, std::min(size, begin + dealing.stripe)});
  }
  // Callers need not sort.
  std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

inline v1::RunSpec SmallSpec(const std::string& optimizer = "adamw {}", int features = 5) {
  v1::RunSpec spec;
  CHECK(google::protobuf::TextFormat::ParseFromString(R"(
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
    })",
                                                      &spec));
  CHECK(google::protobuf::TextFormat::ParseFromString(optimizer, spec.mutable_optimizer()));
  spec.mutable_model()->mutable_layer(3)->mutable_fully_connected()->set_out_features(features);
  return spec;
}

inline ParameterIndex IndexOf(const v1::RunSpec& spec) {
  absl::StatusOr<ParameterIndex> index = ParameterIndex::FromModel(spec.model());
  CHECK(index.ok()) << index.status();
  return *std::move(index);
}

// One rank's values, in memory of its own.
class Holding {
 public:
  Holding(const ParameterIndex& index, const v1::Optimizer& optimizer, std::vector<Interval> ranges)
      : index_(index), ranges_(std::move(ranges)) {
    const size_t lists = 1 + OptimizerStateNames(optimizer).size();
    int64_t count = 0;
    for (const Interval& range : ranges_) count += range.size();
    memory_.assign(lists, std::vector<float>(static_cast<size_t>(count), -1.0F));
  }

  CheckpointValues values() {
    CheckpointValues values{List(0), {}};
    for (size_t i = 1; i < memory_.size(); ++i) values.states.push_back(List(i));
    return values;
  }

  // What stands at a position depends on the position, the list and `seed`.
  static float ValueAt(int64_t position, size_t list, int seed) {
    return static_cast<float>(position) + 0.125F * static_cast<float>(list) +
           1000.0F * static_cast<float>(seed);
  }
  void Fill(int seed) {
    ForEach([&](float& value, int64_t position, size_t list) {
      value = ValueAt(position, list, seed);
    });
  }
  // States of running statistics are not kept: zero.
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
    size_t at = 0;
    for (const Interval& range : ranges_) {
      const auto count = static_cast<size_t>(range.size());
      owned.push_back({range, std::span(memory_[list]).subspan(at, count)});
      at += count;
    }
    return owned;
  }
  void ForEach(const std::function<void(float&, int64_t, size_t)>& use) {
    for (size_t list = 0; list < memory_.size(); ++list) {
      for (const Owned& piece : List(list)) {
        for (int64_t i = 0; i < piece.positions.size(); ++i) {
          use(piece.values[i], piece.positions.begin + i, list);
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

// Calls the body on a thread per rank.
inline void OnGroup(const Dealing& dealing, const ParameterIndex& index,
                    const v1::Optimizer& optimizer,
                    const std::function<void(Communicator&, Holding&)>& body) {
  const Transports transports = MakeTransports(Wire::kThreads, dealing.ranks);
  std::vector<int> members(static_cast<size_t>(dealing.ranks));
  std::iota(members.begin(), members.end(), 0);
  OnRanks(dealing.ranks, [&](int rank) {
    Communicator group(*transports[rank], members);
    Holding holding(index, optimizer, Deal(dealing, index.size(), rank));
    body(group, holding);
  });
}

}  // namespace cadre
