// The numbers of training and of test samples that hosts have seen in their copies of the data.
//
// A value; thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class DataSizes {
 public:
  using Sizes = std::pair<uint64_t, uint64_t>;
  static Sizes Of(const v1::Prepared& prepared) {
    return {prepared.train_samples(), prepared.test_samples()};
  }
  static Sizes Of(const v1::RunRecord& run) { return {run.train_samples(), run.test_samples()}; }

  void Set(const std::string& host, const Sizes& sizes) { sizes_[host] = sizes; }
  // Number of hosts that have reported sizes, and of those that have reported these.
  size_t hosts() const { return sizes_.size(); }
  size_t CountHosts(const Sizes& sizes) const {
    return std::count_if(sizes_.begin(), sizes_.end(),
                         [&](const auto& entry) { return entry.second == sizes; });
  }

 private:
  // By host.
  std::map<std::string, Sizes> sizes_;
};

}  // namespace cadre
