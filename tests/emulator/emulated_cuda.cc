#include "tests/emulator/emulated_cuda.h"

#include <array>
#include <atomic>
#include <utility>

#include "glog/logging.h"
#include "tests/emulator/emulated_machine.h"

namespace cadre {
namespace emulated {
namespace {

// The functions of CudaApi have no object, so those of each table are bound to the slot of their
// machine.
std::array<std::atomic<Machine*>, kMaxMachines> machines;

template <int kSlot, auto kMethod, typename... Arguments>
constexpr auto Bind(cudaError_t (Machine::*)(Arguments...)) -> cudaError_t (*)(Arguments...) {
  return [](Arguments... arguments) -> cudaError_t {
    Machine* machine = machines[kSlot].load(std::memory_order_acquire);
    CHECK(machine != nullptr) << "an emulated machine was called after its destruction";
    return (machine->*kMethod)(arguments...);
  };
}

template <int kSlot, auto kMethod>
inline constexpr auto kCall = Bind<kSlot, kMethod>(kMethod);

template <int kSlot>
constexpr CudaApi kTable = {
    .driver_version = kCall<kSlot, &Machine::DriverVersion>,
    .runtime_version = kCall<kSlot, &Machine::RuntimeVersion>,
    .device_count = kCall<kSlot, &Machine::DeviceCount>,
    .set_device = kCall<kSlot, &Machine::SetDevice>,
    .properties = kCall<kSlot, &Machine::Properties>,
    .memory_info = kCall<kSlot, &Machine::MemoryInfo>,
    .malloc = kCall<kSlot, &Machine::Malloc>,
    .free = kCall<kSlot, &Machine::Free>,
    .host_alloc = kCall<kSlot, &Machine::HostAlloc>,
    .free_host = kCall<kSlot, &Machine::FreeHost>,
    .copy_async = kCall<kSlot, &Machine::CopyAsync>,
    .set_async = kCall<kSlot, &Machine::SetAsync>,
    .stream_create = kCall<kSlot, &Machine::StreamCreate>,
    .stream_destroy = kCall<kSlot, &Machine::StreamDestroy>,
    .stream_synchronize = kCall<kSlot, &Machine::StreamSynchronize>,
    .stream_wait_event = kCall<kSlot, &Machine::StreamWaitEvent>,
    .event_create = kCall<kSlot, &Machine::EventCreate>,
    .event_destroy = kCall<kSlot, &Machine::EventDestroy>,
    .event_record = kCall<kSlot, &Machine::EventRecord>,
    .event_query = kCall<kSlot, &Machine::EventQuery>,
    .event_synchronize = kCall<kSlot, &Machine::EventSynchronize>,
    .event_elapsed = kCall<kSlot, &Machine::EventElapsed>,
    .launch = kCall<kSlot, &Machine::Launch>,
    .begin_capture = kCall<kSlot, &Machine::BeginCapture>,
    .end_capture = kCall<kSlot, &Machine::EndCapture>,
    .graph_instantiate = kCall<kSlot, &Machine::GraphInstantiate>,
    .graph_launch = kCall<kSlot, &Machine::GraphLaunch>,
    .graph_exec_destroy = kCall<kSlot, &Machine::GraphExecDestroy>,
    .graph_destroy = kCall<kSlot, &Machine::GraphDestroy>,
    .last_error = kCall<kSlot, &Machine::LastError>,
    .error_name = &ErrorName,
    .error_text = &ErrorText,
};

template <int... kSlots>
constexpr std::array<const CudaApi*, sizeof...(kSlots)> Tables(
    std::integer_sequence<int, kSlots...> /*slots*/) {
  return {&kTable<kSlots>...};
}
constexpr auto kTables = Tables(std::make_integer_sequence<int, kMaxMachines>());

int TakeSlot(Machine* machine) {
  for (int i = 0; i < kMaxMachines; ++i) {
    Machine* none = nullptr;
    if (machines[i].compare_exchange_strong(none, machine)) return i;
  }
  LOG(FATAL) << "more than " << kMaxMachines << " emulated machines at the same time";
}

std::atomic<uint64_t> machines_made = 0;

}  // namespace

Machine::Machine(EmulatedCuda::Mode mode, int devices)
    : mode_(mode), number_(++machines_made), slot_(TakeSlot(this)), device_count_(devices) {}

Machine::~Machine() {
  // Waits for the pending work of all streams.
  std::vector<std::unique_ptr<StreamState>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.swap(all_streams_);
  }
  streams.clear();
  machines[slot_].store(nullptr, std::memory_order_release);
}

const CudaApi& Machine::api() const { return *kTables[slot_]; }

std::array<Machine::ThreadState, kMaxMachines>& Machine::ThreadStates() {
  static thread_local std::array<ThreadState, kMaxMachines> states;
  return states;
}

std::map<uint64_t, int> Machine::ChosenDevices() {
  std::map<uint64_t, int> chosen;
  for (const ThreadState& state : ThreadStates()) chosen[state.machine] = state.device;
  return chosen;
}

Machine::ThreadState& Machine::thread_state() const {
  ThreadState& state = ThreadStates()[slot_];
  if (state.machine != number_) state = {.machine = number_};
  return state;
}

}  // namespace emulated

EmulatedCuda::EmulatedCuda(Mode mode, int devices)
    : machine_(std::make_unique<emulated::Machine>(mode, devices)) {}

EmulatedCuda::~EmulatedCuda() = default;

const CudaApi& EmulatedCuda::api() const { return machine_->api(); }
EmulatedCuda::Mode EmulatedCuda::mode() const { return machine_->mode(); }
void EmulatedCuda::set_memory(size_t bytes) { machine_->set_memory(bytes); }
void EmulatedCuda::set_versions(int driver, int runtime) {
  machine_->set_versions(driver, runtime);
}
void EmulatedCuda::set_devices(int devices) { machine_->set_devices(devices); }
void EmulatedCuda::FailNext(absl::string_view function, cudaError_t error, int64_t after) {
  machine_->FailNext(function, error, after);
}
void EmulatedCuda::Break(cudaError_t error, int device) { machine_->Break(error, device); }
int64_t EmulatedCuda::calls(absl::string_view function) const { return machine_->calls(function); }
void EmulatedCuda::ResetCalls() { machine_->ResetCalls(); }
EmulatedCuda::Live EmulatedCuda::live() const { return machine_->live(); }

cudaError_t EmulatedCuda::Enqueue(cudaStream_t stream, std::function<cudaError_t()> work) {
  auto* state = reinterpret_cast<emulated::StreamState*>(stream);
  return state->machine->Submit(state, std::move(work));
}

std::map<uint64_t, int> EmulatedCuda::ChosenDevices() { return emulated::Machine::ChosenDevices(); }

bool EmulatedCuda::IsOf(cudaStream_t stream, const std::map<uint64_t, int>& devices) {
  const auto* state = reinterpret_cast<emulated::StreamState*>(stream);
  const auto chosen = devices.find(state->machine->number());
  return state->device == (chosen == devices.end() ? 0 : chosen->second);
}

bool EmulatedCuda::OnDevice(cudaStream_t stream, const void* memory, size_t bytes) {
  auto* state = reinterpret_cast<emulated::StreamState*>(stream);
  return state->machine->memory(state->device).Holds(memory, bytes);
}

}  // namespace cadre
