// A list schedule of the tapes of all ranks: each rank has a clock and executes the passes of its
// stage in order, and in each pass the operations of its tape.
//
//   compute   takes the measured time of the part of the layer, or the time that follows from work
//   send      costs the rank nothing. Its messages leave in the background, one at a time, in the
//             order of their receives
//   receive   ends when the last of its messages has arrived, which the rank receives one at a time
//   exchange  begins when its last member has reached it, and takes the alpha-beta time of the
//             member that sends or receives most
//
// A message begins when its data is computed, the messages that its sender sends before it have
// arrived, and its receiver is ready for it; it takes alpha + beta bytes. A rank is ready for a
// message when it has executed the receive before, and computes while the message arrives
// (worker/nn/network.cc, ReceiveNext). For the first message of a pass it is ready when the pass
// before begins, or if both passes use the same memory, when that pass has ended.
//
// So two things are modelled that a plan without placements does not have: ranks that wait for
// other ranks' layers, and messages that wait for their sender and their receiver. Not modelled:
// contention for links that several ranks share, such as those of a host or between switches;
// contention of messages with exchanges; the slowdown of compute by the threads that send and
// receive; and waits for memory from which a message is still sent (plan/pipeline.cc). All
// micro-batches are as large as the largest.
//
// The schedule always progresses, because ranks cannot deadlock (plan/tape.cc, plan/pipeline.cc).
// Cost: linear in the operations of all tapes and passes, times the number of ranks in the worst
// case.
#include "plan/search/placed_prediction.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "plan/cost/communication_cost.h"
#include "plan/layer_part.h"
#include "plan/search/layer_bytes.h"
#include "plan/tape.h"

namespace cadre {
namespace {

class Simulation {
 public:
  Simulation(const PlanProblem& problem, const Plan& plan, const PassOrder& order)
      : problem_(problem),
        plan_(plan),
        order_(order),
        graph_(*problem.graph),
        ranks_(plan.mesh.ranks()) {
    for (int number = 0; number < plan.mesh.ranks(); ++number) {
      Rank& rank = ranks_[number];
      // The seconds of a fused operation are those of its layers.
      rank.tape = MakeTape(graph_, plan, number, LargestMicroBatch(problem), /*training=*/true,
                           DType::kFloat32, Fusion::kOff);
      const auto loss = std::find_if(rank.tape.ops.begin(), rank.tape.ops.end(),
                                     [](const TapeOp& op) { return op.kind == TapeOpKind::kLoss; });
      rank.forward_ops = loss + 1 - rank.tape.ops.begin();
      const int stage = StageIn(order, plan.mesh, number);
      rank.passes = order.OfStage(stage);
      rank.in_flight = order.InFlight(stage);
      for (const Pass pass : rank.passes) {
        for (size_t i = rank.begin(pass); i < rank.end(pass); ++i) {
          const TapeOp& op = rank.tape.ops[i];
          if (op.kind == TapeOpKind::kSend) rank.sends[NumberOf(rank, op, pass)] = {};
        }
      }
    }
  }

  std::vector<PlacedRankTime> Run() {
    bool done = false;
    while (!done) {
      bool progressed = false;
      done = true;
      for (int rank = 0; rank < std::ssize(ranks_); ++rank) {
        while (!ranks_[rank].done() && Step(rank)) progressed = true;
        done = done && ranks_[rank].done();
      }
      CHECK(done || progressed) << "the tapes wait for one another";
    }
    std::vector<PlacedRankTime> times;
    for (const Rank& rank : ranks_) times.push_back(rank.time);
    return times;
  }

 private:
  struct Message {
    // When its data was computed; nullopt: not yet.
    std::optional<double> ready;
    // Seconds on the link, by each receiver that it has not reached yet.
    std::map<int, double> seconds;
  };
  struct Rank {
    Tape tape;
    // The forward pass, with the loss, is the operations before this one.
    size_t forward_ops = 0;
    std::span<const Pass> passes;
    // Micro-batches that have memory of their own.
    int in_flight = 1;
    // The pass that is played, when it began, and how many of its operations were.
    size_t pass = 0;
    double pass_begin = 0;
    size_t played = 0;
    PlacedRankTime time;
    // Messages that have not reached all receivers, by number, and when the ones before had.
    std::map<uint32_t, Message> sends;
    double sender_free = 0;
    // When the rank is ready for the next message.
    double receiver_free = 0;
    // Messages of the operation, a receive, that have arrived.
    size_t received = 0;

    size_t begin(Pass of) const { return of.backward ? forward_ops : 0; }
    size_t end(Pass of) const { return of.backward ? tape.ops.size() : forward_ops; }
    bool done() const { return pass == passes.size(); }
    const TapeOp& op() const { return tape.ops[begin(passes[pass]) + played]; }
    void Advance() {
      ++played;
      SkipEmptyPasses();
    }
    void SkipEmptyPasses() {
      while (!done() && begin(passes[pass]) + played == end(passes[pass])) {
        ++pass;
        played = 0;
        if (!done()) BeginPass();
      }
    }
    void BeginPass() {
      const bool same_memory =
          (passes[pass].micro_batch - passes[pass - 1].micro_batch) % in_flight == 0;
      receiver_free = std::max(receiver_free, same_memory ? time.end : pass_begin);
      pass_begin = time.end;
    }
  };
  // Identifies an exchange on all its members: micro-batch, kind, whether it is executed again,
  // layer, input, step.
  using ExchangeKey = std::tuple<int, TapeOpKind, bool, int, int, size_t, std::vector<int>>;
  struct Meeting {
    int arrived = 0;
    double begin = 0;
    double seconds = 0;
  };

  uint32_t NumberOf(const Rank& rank, const TapeOp& op, Pass pass) const {
    return MessageNumber(order_, graph_, plan_, op, pass, rank.tape.orders);
  }

  double ComputeSeconds(const TapeOp& op) const {
    const LayerLayouts& layouts = plan_.layers[op.layer];
    const LayerPart part = PartOf(layouts, plan_.mesh, LargestMicroBatch(problem_));
    const LayerSeconds seconds = problem_.hardware.SecondsOf(graph_[op.layer], op.layer, part);
    switch (op.kind) {
      case TapeOpKind::kForward:
        return seconds.forward;
      case TapeOpKind::kBackward:
        return seconds.backward;
      case TapeOpKind::kLoss:
        // A rank without the loss has no rows of it.
        return plan_.mesh.IsAt(current_, layouts.at) ? seconds.forward + seconds.backward : 0;
      default:
        return 0;
    }
  }

  double MessageSeconds(int from, int to, int64_t elements) const {
    std::vector<std::string> axes;
    for (const Mesh::Axis& axis : plan_.mesh.axes()) {
      if (plan_.mesh.Coordinate(from, axis.name) != plan_.mesh.Coordinate(to, axis.name)) {
        axes.push_back(axis.name);
      }
    }
    const LinkProfile& link = problem_.hardware.LinkOf(plan_.mesh, axes);
    const int64_t bytes_per_element = problem_.bf16_weights ? 2 : kBytesPerWord;
    return link.alpha + link.beta * bytes_per_element * elements;
  }

  // Seconds of the messages that a rank sends, or receives, in an exchange.
  double SecondsOf(const Exchange& step, const std::vector<Exchange::Message>& messages) const {
    double seconds = 0;
    for (const Exchange::Message& message : messages) {
      if (message.peer == step.index) continue;
      seconds +=
          MessageSeconds(current_, step.members[message.peer], message.box.shape().elements());
    }
    return seconds;
  }

  // Executes the next operation of the rank, if it need not wait for other ranks.
  bool Step(int number) {
    current_ = number;
    Rank& rank = ranks_[number];
    const TapeOp& op = rank.op();
    switch (op.kind) {
      case TapeOpKind::kSend:
        Send(rank, op);
        break;
      case TapeOpKind::kReceive:
        return Receive(rank, op);
      case TapeOpKind::kMove:
      case TapeOpKind::kMoveGradient:
        return Meet(rank, op);
      default: {
        const double seconds = ComputeSeconds(op);
        rank.time.compute += seconds;
        rank.time.end += seconds;
      }
    }
    rank.Advance();
    return true;
  }

  void Send(Rank& rank, const TapeOp& op) {
    const Exchange& step = op.move.steps[0];
    Message& message = rank.sends[NumberOf(rank, op, rank.passes[rank.pass])];
    message.ready = rank.time.end;
    for (const Exchange::Message& part : step.sends) {
      if (part.peer == step.index) continue;
      const int to = step.members[part.peer];
      message.seconds[to] = MessageSeconds(current_, to, part.box.shape().elements());
    }
    rank.time.elements_sent += step.elements_sent();
  }

  // Sends the message to one receiver, which is ready for it at `ready`. Returns when it arrives,
  // or nullopt if its data is not computed yet or messages before it have not arrived yet.
  static std::optional<double> Deliver(Rank& sender, uint32_t number, int receiver, double ready) {
    while (true) {
      CHECK(!sender.sends.empty()) << "message " << number << " is not sent";
      auto& [first, message] = *sender.sends.begin();
      if (!message.ready) return std::nullopt;
      const auto next = message.seconds.begin();
      if (next != message.seconds.end()) {
        if (first != number || next->first != receiver) return std::nullopt;
        sender.sender_free = std::max({*message.ready, sender.sender_free, ready}) + next->second;
        message.seconds.erase(next);
        return sender.sender_free;
      }
      sender.sender_free = std::max(sender.sender_free, *message.ready);
      sender.sends.erase(sender.sends.begin());
    }
  }

  // Receives the next message of the operation, or ends it. Returns false if the message cannot
  // arrive yet.
  bool Receive(Rank& rank, const TapeOp& op) {
    const Exchange& step = op.move.steps[0];
    if (rank.received == step.receives.size()) {
      const double end = std::max(rank.time.end, rank.receiver_free);
      rank.time.moves += end - rank.time.end;
      rank.time.end = rank.receiver_free = end;
      rank.received = 0;
      rank.Advance();
      return true;
    }
    const Exchange::Message& message = step.receives[rank.received];
    if (message.peer != step.index) {
      const uint32_t number = NumberOf(rank, op, rank.passes[rank.pass]);
      const auto arrival =
          Deliver(ranks_[step.members[message.peer]], number, current_, rank.receiver_free);
      if (!arrival) return false;
      rank.receiver_free = *arrival;
    }
    ++rank.received;
    return true;
  }

  // The steps of a move, one after the other. Returns false if other members are not there yet.
  bool Meet(Rank& rank, const TapeOp& op) {
    double end = rank.time.end;
    for (size_t s = 0; s < op.move.steps.size(); ++s) {
      const Exchange& step = op.move.steps[s];
      Meeting& meeting = meetings_[{rank.passes[rank.pass].micro_batch, op.kind, op.again, op.layer,
                                    op.input, s, step.members}];
      // Each member adds itself once.
      if (entered_.insert({current_, &meeting}).second) {
        ++meeting.arrived;
        meeting.begin = std::max(meeting.begin, end);
        meeting.seconds = std::max(
            {meeting.seconds, SecondsOf(step, step.sends), SecondsOf(step, step.receives)});
      }
      if (meeting.arrived < std::ssize(step.members)) return false;
      end = meeting.begin + meeting.seconds;
    }
    for (const Exchange& step : op.move.steps) rank.time.elements_sent += step.elements_sent();
    rank.time.moves += end - rank.time.end;
    rank.time.end = end;
    rank.Advance();
    return true;
  }

  const PlanProblem& problem_;
  const Plan& plan_;
  const PassOrder& order_;
  const Graph& graph_;
  std::vector<Rank> ranks_;
  std::map<ExchangeKey, Meeting> meetings_;
  std::set<std::pair<int, const Meeting*>> entered_;
  // The rank that is being simulated.
  int current_ = 0;
};

}  // namespace

std::vector<PlacedRankTime> SimulatePasses(const PlanProblem& problem, const Plan& plan,
                                           const PassOrder& order) {
  return Simulation(problem, plan, order).Run();
}

}  // namespace cadre
