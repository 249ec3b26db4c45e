// The parameters of a program: their description, and where their values lie in its memory. Ranks
// that have all values divide them: each owns an interval of them, exchanges it with the
// aggregators and gives it to the others.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/interval.h"
#include "worker/comm/communicator.h"
#include "worker/train/owned.h"

namespace cadre {

// What a program has registered.
struct CallerParameter {
  std::string name;
  std::vector<uint64_t> shape;
  bool trained = true;
  // All values of the parameter, or null: then only the parts.
  float* values = nullptr;
  struct Part {
    // Elements of the parameter, row-major.
    Interval elements;
    float* values = nullptr;
  };
  std::vector<Part> parts;
};

class CallerValues {
 public:
  // Finds the program's parameters in the model of the run. Those of an opaque model must be equal
  // to them in order, name, shape and role. Those of a graph are found by name, where "." may stand
  // for "/", and the names that PyTorch gives to the parameters of norms for those of the layers.
  // Errors: InvalidArgument, naming the parameter and both sides.
  static absl::StatusOr<CallerValues> Make(const std::vector<CallerParameter>& parameters,
                                           const v1::Model& model, int rank, int ranks);

  const ParameterIndex& index() const { return index_; }
  // What this rank owns, in parameter order.
  const std::vector<Owned>& owned() const { return owned_; }

  // A collective. Errors: InvalidArgument if the ranks' intervals do not partition the model.
  absl::Status CheckPartition(Communicator& group) const;
  // The program's values were fetched: copies what this rank owns of the values that all ranks
  // have.
  void TakeShared();
  // A collective: gives the values that this rank owns to the ranks that share them.
  absl::Status GiveShared(Communicator& group);
  // Errors: OutOfRange, naming the first parameter with a value that is not finite.
  absl::Status CheckFinite() const;

 private:
  struct Shared {
    float* values = nullptr;
    // In shared_.
    Interval positions;
  };

  ParameterIndex index_;
  std::vector<Owned> owned_;
  // In groups of several ranks: a copy of all values that they share, and the ends of the ranks'
  // parts of it.
  std::vector<Shared> tensors_;
  std::vector<float> shared_;
  std::vector<int64_t> offsets_;
  int rank_ = 0;
};

}  // namespace cadre
