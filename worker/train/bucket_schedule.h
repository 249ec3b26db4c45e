// Decides when the operations of a training step on buckets (parameters whose gradients are reduced
// together) and their chunks run: a state machine without threads, device or data. The caller
// reports which layers are computed and which operations are done, and gets the operations that are
// ready. bucket_schedule.cc explains the idea. ThreadFlow and StreamFlow execute the operations.
//
// Threads: two threads may use one object. The thread that executes operations calls Done and Stop,
// and only from the start of an operation that AfterForwards returned until the next one. The
// rank's own thread calls everything else.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensor/interval.h"

namespace cadre {

// What is fixed about the buckets of a plan: which ranks reduce, own and gather which interval of
// each bucket, the number of chunks into which it is cut, and the layers of its parameters.
struct BucketTable {
  struct Bucket {
    int chunks = 1;
    // Whether this rank holds the bucket's parameters. Operations on other buckets do nothing; they
    // keep the order of operations equal on all ranks.
    bool held = true;
    // The first layer whose forward needs the weights.
    int first_layer = 0;
    // reduce[chunk][i] is the interval that member i along the bucket's axes sums; gather[chunk][i]
    // is the interval that owner i provides. Ranks with equal gradients (those along the bucket's
    // replica axes) each reduce only what they own.
    std::vector<std::vector<Interval>> reduce;
    std::vector<std::vector<Interval>> gather;
    // This rank's interval of each chunk.
    std::vector<Interval> mine;
    // Axes along which the weights are gathered.
    std::vector<std::string> owner_axes;
  };
  std::vector<Bucket> buckets;
  // Buckets that hold parameters of each layer; of layers on this rank only.
  std::vector<std::vector<int>> of_layer;
};

struct BucketOp {
  enum class Kind : uint8_t {
    kLoss = 1,         // sum the loss over the group
    kReduce,           // reduce-scatter a chunk's gradients
    kNorms,            // sum the norms over the group
    kUpdate,           // update the owned interval of a chunk
    kGather,           // all-gather a chunk's weights
    kUpdateAndGather,  // kUpdate, then kGather
  };
  Kind kind = Kind::kLoss;
  // -1: the operation concerns the whole model.
  int bucket = -1;
  int chunk = 0;
  friend bool operator==(const BucketOp&, const BucketOp&) = default;
};
using BucketOps = std::vector<BucketOp>;

class BucketSchedule {
 public:
  struct Policy {
    // True: reductions start during backward, and gathers may run during the next forward.
    bool overlap = true;
    // True: the optimizer needs norms over the whole model, so updates wait for all reductions.
    bool norms = false;
    // True: gathers are returned by the next BeginForward rather than after each update.
    bool lazy_gathers = false;
  };
  // `table` must outlive the schedule.
  BucketSchedule(const BucketTable& table, const Policy& policy);

  // Starts a step. `gather`: all ranks get the new weights; otherwise only the owned intervals are
  // updated until Gather is called. Operations of the step before may still be executing.
  void BeginStep(bool gather);
  // The next forward pass is the step's last; the next backward pass is.
  void BeginLastForward() { state_.last_forward = true; }
  void BeginLastBackward() { state_.last_backward = true; }

  // A forward pass is done.
  void AfterLoss() { state_.first_pass = false; }

  // Each of the following returns the operations to start now, in this order.
  BucketOps BeginForward();
  // After the last forward pass.
  BucketOps AfterForwards();
  BucketOps AfterBackward(int layer);
  BucketOps EndPass();
  // Gathers the weights outside of a step.
  BucketOps Gather();
  // Reports that `op` was executed (or enqueued, if streams keep the order), and returns the
  // operations that follow it.
  BucketOps Done(const BucketOp& op);

  // Called when the loss or the norms are not finite: no weight changes in this step. Reductions
  // continue, because other ranks take part in them.
  void Stop() { state_.stopped = true; }
  // Operations that Done will return later in this step and that forward may have to wait for.
  BucketOps Expected() const;
  // Operations with lower values run first: earlier layers wait for them.
  int64_t Priority(const BucketOp& op) const;

  bool first_pass() const { return state_.first_pass; }
  bool last_backward() const { return state_.last_backward; }
  bool gather() const { return state_.gather; }
  bool overlap() const { return policy_.overlap; }

  // Everything that decides which operations come next: two steps with equal states at the start of
  // a pass execute equal operations in it.
  struct State {
    // Owned by the rank's thread.
    bool gather = false;
    bool first_pass = true;
    bool last_forward = false;
    bool last_backward = false;
    // The weights of owned intervals are newer than the copies on other ranks.
    bool gathers_pending = false;
    // By bucket: number of its layers whose backward is still to come.
    std::vector<int> layers_left;
    // By bucket: whether its reductions were returned.
    std::vector<bool> reducing;
    // Owned by the thread that executes operations.
    bool stopped = false;
    bool gathers_follow = false;
    int reductions_left = 0;
    friend bool operator==(const State&, const State&) = default;
  };
  const State& state() const { return state_; }
  void set_state(State state) { state_ = std::move(state); }

 private:
  void AddChunks(BucketOp::Kind kind, int bucket, BucketOps& ops) const;
  // An operation for every chunk of the model, in the order in which forward needs the buckets.
  BucketOps ForAllChunks(BucketOp::Kind kind) const;
  void AddReductions(int bucket, BucketOps& ops);

  const BucketTable& table_;
  const Policy policy_;
  std::vector<int> forward_order_;
  State state_;
};

}  // namespace cadre
