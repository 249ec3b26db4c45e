// The parameters of a program: their description, and where their values lie in its memory. Values
// that several ranks hold are equal on them (CheckShared), and these ranks divide their exchange:
// each owns an interval of them, exchanges it with the aggregators and sends it to the others.
// Statistics, such as those of batch norm, may differ: each element is then that of the rank that
// owns it.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "member/owned.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/interval.h"

namespace cadre {

// What a program has registered.
struct CallerParameter {
  std::string name;
  std::vector<uint64_t> shape;
  bool trained = true;
  // Not empty: the parameter is frozen (v1::OpaqueParameter.frozen_digest) and has no parts.
  std::string frozen_digest;
  struct Part {
    // Elements of the parameter, row-major.
    Interval elements;
    // Borrowed.
    float* values = nullptr;
  };
  // What this rank holds.
  std::vector<Part> parts;
};

class CallerValues {
 public:
  // Finds the program's parameters in the model of the run. Those of an opaque model must be equal
  // to them in order, name, shape and role. Those of a graph are found by name, where "." may stand
  // for "/", and the names that PyTorch gives to the parameters of norms for those of the layers.
  // Errors: InvalidArgument, naming the parameter and both sides.
  static absl::StatusOr<CallerValues> Make(const std::vector<CallerParameter>& parameters,
                                           const v1::Model& model);

  // A collective: divides the values among the ranks that hold them. Borrows `transport` until the
  // object is destroyed. Errors: InvalidArgument, naming the element, if no rank holds it, or one
  // rank twice; those of the transport.
  absl::Status Divide(Transport& transport);

  // Copies a whole version, in the parameter order, to what this rank holds.
  void SetAll(std::span<const float> version);

  const ParameterIndex& index() const { return index_; }
  // What this rank owns, in parameter order. Requires: Divide.
  const std::vector<Owned>& owned() const { return owned_; }

  // Bytes of the copies of values that other ranks hold, too. Requires: Divide.
  int64_t CopiedBytes() const;

  // The program's values were fetched: copies what this rank owns of the values that other ranks
  // hold, too.
  void TakeShared();
  // A collective: sends the values that this rank owns to the other ranks that hold them.
  absl::Status GiveShared();
  // A collective: compares digests of the trained values that several ranks hold. Costs one pass
  // over them and eight bytes per rank. Requires: TakeShared. Errors: OutOfRange, naming a
  // parameter and two ranks that have different values of it; those of the transport.
  absl::Status CheckShared();
  // Errors: OutOfRange, naming the first parameter with a value that is not finite.
  absl::Status CheckFinite() const;

 private:
  // Values that the same ranks hold.
  struct Shared {
    Shared(Transport& transport, std::vector<int> ranks) : holders(transport, std::move(ranks)) {}

    Communicator holders;
    // The program's memory of each interval, in the order of `values`, and the position at which it
    // begins. An interval lies in one parameter.
    std::vector<std::span<float>> parts;
    std::vector<int64_t> positions;
    // A copy of them, and the ends of the holders' shares of it.
    std::vector<float> values;
    std::vector<int64_t> offsets;
  };

  // The digest of each interval; 0 for a statistic.
  std::vector<uint64_t> Digests(const Shared& shared) const;
  absl::Status CheckEqual(Shared& shared);
  // A collective among the holders: names the first interval of which they have different values.
  absl::Status Difference(Shared& shared, const std::vector<uint64_t>& digests);
  // The parameter that has this position.
  const Parameter& ParameterAt(int64_t position) const;

  // Disjoint intervals of positions, by the ranks that hold them, in ascending order.
  using HeldBy = std::map<std::vector<int>, std::vector<Interval>>;
  // `held`: the intervals of each rank, ascending. Errors: as Divide.
  absl::StatusOr<HeldBy> FindHolders(const std::vector<std::vector<Interval>>& held) const;
  // Names the element at a position of the index.
  absl::Status ElementError(int64_t position, absl::string_view what) const;
  // The program's memory of an interval within one that this rank holds.
  std::span<float> Memory(Interval positions) const;
  void Share(Transport& transport, const std::vector<int>& ranks,
             const std::vector<Interval>& intervals);

  ParameterIndex index_;
  // What this rank holds, by position.
  std::vector<Owned> held_;
  std::vector<Owned> owned_;
  // In an order that is equal on all ranks.
  std::vector<std::unique_ptr<Shared>> shared_;
};

}  // namespace cadre
