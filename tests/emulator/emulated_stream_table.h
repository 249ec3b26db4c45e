// Streams, events, captures and graphs of an emulated machine (emulated_cuda.h), by CUDA's rules.
// emulated_stream.h has what they consist of.
//
// emulated_stream_table.cc has streams and events, emulated_capture.cc captures and graphs.
//
// Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/emulator/emulated_devices.h"
#include "tests/emulator/emulated_stream.h"

namespace cadre::emulated {

class StreamTable;
struct StreamState;

// A capture in progress. Guarded by its StreamTable.
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  // The streams that take part; first the stream on which the capture began.
  std::vector<StreamState*> branches;
  std::vector<GraphNode> nodes;
  bool invalidated = false;
  bool ended = false;
};

// The objects to which CUDA's handles point. Guarded by the mutex of StreamTable, except for the
// work of `queue`.
struct StreamState {
  StreamTable* table = nullptr;
  int device = 0;
  DeviceMemory* memory = nullptr;
  // Null if work runs in the call that enqueues it.
  std::unique_ptr<TaskQueue> queue;
  // Null if the stream is not captured.
  std::shared_ptr<Capture> capture;
  // The nodes that the next node depends on.
  std::vector<int> tail;
};

struct EventState {
  int device = 0;
  bool timing = false;
  // Null if never recorded.
  std::shared_ptr<Point> point;
  // The capture of the last record; null if it was outside of captures.
  std::shared_ptr<Capture> capture;
  std::vector<int> tail;
};

using GraphState = std::vector<GraphNode>;

// The error with which the work of a call fails later, or success.
struct LaterError {
  cudaError_t value;
};
// The error that a call returns, or success. Calls that destroy something do so in either case.
struct EntryError {
  cudaError_t value;
};

class StreamTable {
 public:
  // `threads`: work runs in a thread per stream, and per branch of a graph; otherwise in the call
  // that enqueues it. `devices` must outlive the table.
  StreamTable(Devices& devices, bool threads) : devices_(devices), threads_(threads) {}

  Devices& devices() const { return devices_; }
  // Null for an invalid handle.
  StreamState* Find(cudaStream_t stream) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Enqueues work, or adds it to the stream's capture.
  cudaError_t Submit(StreamState* stream, Work work);
  // Wait for the work of a device, and for all work of all streams, which end then.
  void DrainDevice(int device);
  void End();
  bool IsCaptured(const StreamState& stream) const;
  // Requires: the stream is captured.
  void Invalidate(const StreamState& stream);
  // An error if the calling thread captures; for calls that CUDA forbids then.
  cudaError_t ForbidInCapture();
  // Adds streams, events and graphs.
  void Count(LiveObjects& live) const;

  // --- functions of CudaApi ---
  cudaError_t StreamCreate(cudaStream_t* stream, unsigned flags, int priority);
  cudaError_t StreamDestroy(EntryError error, cudaStream_t stream);
  cudaError_t StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
  cudaError_t EventCreate(cudaEvent_t* event, unsigned flags);
  cudaError_t EventDestroy(EntryError error, cudaEvent_t event);
  cudaError_t EventRecord(cudaEvent_t event, cudaStream_t stream);
  cudaError_t EventQuery(cudaEvent_t event);
  cudaError_t EventElapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
  cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(EntryError error, cudaStream_t stream, cudaGraph_t* graph);
  cudaError_t GraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                               unsigned long long flags);  // NOLINT: as CUDA has it
  cudaError_t GraphLaunch(LaterError later, cudaGraphExec_t graph, cudaStream_t stream);
  cudaError_t GraphExecDestroy(EntryError error, cudaGraphExec_t graph);
  cudaError_t GraphDestroy(EntryError error, cudaGraph_t graph);

 private:
  // Null for an invalid handle.
  StreamState* FindLocked(cudaStream_t stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  EventState* FindLocked(cudaEvent_t event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t WaitInCapture(StreamState& stream, const EventState& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes all streams from the capture.
  void EndLocked(Capture& capture) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool AllJoined(const Capture& capture, const std::vector<int>& tail);
  // Runs work of the stream. It takes no lock, so that work is ordered only as a device orders it.
  void Do(const StreamState& stream, const Work& work);

  Devices& devices_;
  const bool threads_;
  mutable absl::Mutex mutex_;
  // Streams are kept until the machine ends, because their work may still be running.
  std::vector<std::unique_ptr<StreamState>> all_streams_ ABSL_GUARDED_BY(mutex_);
  std::set<const StreamState*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<EventState>> events_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<GraphState>> graphs_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::shared_ptr<GraphPlayer>> execs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Capture>> captures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::emulated
