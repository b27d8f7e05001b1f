// Streams, events, captures and graphs of the fake driver. A graph is what the dependencies of its
// operations make of it: operations that are not ordered run at the same time.
#include <algorithm>
#include <map>
#include <set>

#include "fake_driver.hpp"

using namespace chorus::cuda;
using namespace fake;

namespace fake {

std::vector<CUstream_st*> streams;
std::vector<CUstream_st*> unused;

namespace {

std::mutex captures_mutex;
std::map<unsigned long long, CUgraph_st*> captures;  // under way
thread_local int capture_mode = kCaptureModeGlobal;

CUgraph_st* capture_of(unsigned long long id) {
  const std::lock_guard lock(captures_mutex);
  const auto found = captures.find(id);
  return found == captures.end() ? nullptr : found->second;
}

void merge(std::vector<std::size_t>& into, const std::vector<std::size_t>& nodes) {
  for (const std::size_t node : nodes) {
    if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
  }
}

std::set<std::size_t> ancestors(const CUgraph_st& graph, std::vector<std::size_t> open) {
  std::set<std::size_t> seen;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    open.insert(open.end(), graph.nodes[node].after.begin(), graph.nodes[node].after.end());
  }
  return seen;
}

/// As long as the process, or of a thread that never takes them back.
CUstream_st* make_default_stream(CUctx_st* context, bool legacy) {
  auto* const stream = new CUstream_st;
  stream->queue = Queue::make();
  stream->context = context;
  stream->blocking = true;
  stream->legacy = legacy;
  const std::lock_guard lock(mutex);
  if (!legacy) streams.push_back(stream);
  return stream;
}

CUstream_st* legacy_stream(CUctx_st* context) {
  static auto* const all = new std::map<CUctx_st*, CUstream_st*>;
  static std::mutex all_mutex;
  const std::lock_guard lock(all_mutex);
  CUstream_st*& stream = (*all)[context];
  if (stream == nullptr) stream = make_default_stream(context, true);
  return stream;
}

CUstream_st* stream_of_thread(CUctx_st* context) {
  thread_local std::map<CUctx_st*, CUstream_st*> mine;
  CUstream_st*& stream = mine[context];
  if (stream == nullptr) stream = make_default_stream(context, false);
  return stream;
}

}  // namespace

std::shared_ptr<Queue> Queue::make() {
  auto queue = std::make_shared<Queue>();
  std::thread([queue] { queue->run(); }).detach();
  return queue;
}

void Queue::push(Op op) {
  {
    const std::lock_guard lock(mutex_);
    ops_.push_back(std::move(op));
  }
  changed_.notify_all();
}

void Queue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ops_.empty() && !busy_; });
}

bool Queue::idle() {
  const std::lock_guard lock(mutex_);
  return ops_.empty() && !busy_;
}

void Queue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void Queue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !ops_.empty(); });
    if (ops_.empty()) return;
    {
      const Op op = std::move(ops_.front());
      ops_.pop_front();
      busy_ = true;
      lock.unlock();
      op();
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

int exchange_capture_mode(int mode) { return std::exchange(capture_mode, mode); }

bool spoils_capture() {
  if (capture_mode == kCaptureModeRelaxed) return false;
  const std::lock_guard lock(captures_mutex);
  bool spoils = false;
  for (const auto& [id, capture] : captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids = capture->mode == kCaptureModeGlobal
                             ? own || capture_mode == kCaptureModeGlobal
                             : capture->mode == kCaptureModeThreadLocal && own;
    if (!forbids) continue;
    capture->invalid = kCaptureInvalidated;
    spoils = true;
  }
  return spoils;
}

Result invalidate(CUgraph_st& capture, Result result) {
  capture.invalid = kCaptureInvalidated;
  return result;
}

void add_node(CUstream_st& stream, std::function<Op()> make) {
  std::vector<Node>& nodes = stream.capture->nodes;
  nodes.push_back({std::move(make), stream.frontier});
  stream.frontier = {nodes.size() - 1};
}

Result find_stream(StreamHandle handle, CUstream_st*& stream) {
  stream = handle;
  if (!is_default(handle)) return kSuccess;
  if (const Result state = state_of_context(); state != kSuccess) return state;
  CUctx_st* const context = current().back();
  const bool per_thread = reinterpret_cast<std::uintptr_t>(handle) == kStreamPerThread;
  stream = per_thread ? stream_of_thread(context) : legacy_stream(context);
  return kSuccess;
}

Result submit(CUstream_st* handle, Op op) {
  CUstream_st* stream = nullptr;
  if (const Result found = find_stream(handle, stream); found != kSuccess) return found;
  if (!stream->legacy) {
    if (stream->capture == nullptr) {
      stream->queue->push(std::move(op));
    } else if (stream->capture->invalid != kSuccess) {
      return kCaptureInvalidated;
    } else {
      add_node(*stream, [op = std::move(op)] { return op; });
    }
    return kSuccess;
  }
  // The legacy default stream waits for all streams that were not made to ignore it.
  std::vector<CUstream_st*> before;
  {
    const std::lock_guard lock(mutex);
    before = streams;
  }
  std::erase_if(before, [&](CUstream_st* other) { return other->context != stream->context; });
  for (CUstream_st* other : before) {
    if (other->capture != nullptr) return invalidate(*other->capture, kCaptureImplicit);
  }
  for (CUstream_st* other : before) {
    const auto done = std::make_shared<std::atomic<bool>>(false);
    other->queue->push([done] { *done = true; });
    stream->queue->push([done] {
      while (!*done) std::this_thread::yield();
    });
  }
  stream->queue->push(std::move(op));
  return kSuccess;
}

Op run_of(const std::vector<Node>& nodes) {
  struct Run {
    std::vector<Op> ops;
    std::vector<std::vector<std::size_t>> after;
    std::vector<bool> done;
    std::mutex mutex;
    std::condition_variable changed;
  };
  const auto run = std::make_shared<Run>();
  for (const Node& node : nodes) {
    run->ops.push_back(node.make());
    run->after.push_back(node.after);
  }
  run->done.resize(nodes.size());
  return [run] {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < run->ops.size(); ++i) {
      threads.emplace_back([&run, i] {
        {
          std::unique_lock lock(run->mutex);
          run->changed.wait(lock, [&] {
            return std::all_of(run->after[i].begin(), run->after[i].end(),
                               [&](std::size_t node) { return run->done[node]; });
          });
        }
        run->ops[i]();
        const std::lock_guard lock(run->mutex);
        run->done[i] = true;
        run->changed.notify_all();
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
}

Op recording(CUevent_st& event) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event.mutex);
    number = ++event.recorded;
  }
  return [event = event.self, number] {
    const std::lock_guard lock(event->mutex);
    event->completed = std::max(event->completed, number);
    event->completed_at = std::chrono::steady_clock::now();
    event->changed.notify_all();
  };
}

Op waiting(CUevent_st& event) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event.mutex);
    number = event.recorded;
  }
  return [event = event.self, number] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->completed >= number; });
  };
}

Result finish_capture(CUstream_st& stream, CUgraph_st*& graph) {
  CUgraph_st* const capture = stream.capture;
  graph = nullptr;
  if (capture == nullptr || capture->origin != &stream) return kInvalidValue;
  if (capture->mode != kCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  {
    const std::lock_guard lock(captures_mutex);
    captures.erase(capture->id);
  }
  const bool joined = ancestors(*capture, stream.frontier).size() == capture->nodes.size();
  for (CUstream_st* member : capture->streams) {
    member->capture = nullptr;
    member->frontier.clear();
  }
  const Result result = capture->invalid != kSuccess ? capture->invalid
                        : joined                     ? kSuccess
                                                     : kCaptureUnjoined;
  if (result == kSuccess) {
    graph = capture;
  } else {
    delete capture;
  }
  return result;
}

}  // namespace fake

#define FAKE(symbol)                                                 \
  if (const Result failed = injected(#symbol); failed != kSuccess) { \
    return failed;                                                   \
  }

// Of a function of a stream, and `stream` is that of `handle`.
#define FAKE_ON_STREAM(symbol)   \
  FAKE(symbol)                   \
  CUstream_st* stream = nullptr; \
  if (const Result found = find_stream(handle, stream); found != kSuccess) return found;

extern "C" {

Result cuStreamGetCaptureInfo_v2(StreamHandle stream, int* capturing, unsigned long long* id,
                                 Graph* graph, const GraphNode** nodes, std::size_t* num);
Result cuEventRecordWithFlags(EventHandle event, StreamHandle stream, unsigned flags);

Result cuStreamCreate(StreamHandle* stream, unsigned flags) {
  FAKE(cuStreamCreate)
  if (const Result state = state_of_context(); state != kSuccess) return state;
  const std::lock_guard lock(mutex);
  if (unused.empty()) {
    *stream = new CUstream_st;
  } else {
    *stream = unused.back();
    unused.pop_back();
  }
  (*stream)->queue = Queue::make();
  (*stream)->context = current().back();
  (*stream)->blocking = (flags & kStreamNonBlocking) == 0;
  if ((*stream)->blocking) streams.push_back(*stream);
  return kSuccess;
}
Result cuStreamDestroy_v2(StreamHandle stream) {
  if (is_default(stream) || !stream->queue) return kInvalidHandle;
  if (stream->capture != nullptr) return invalidate(*stream->capture, kCaptureUnsupported);
  const std::lock_guard lock(mutex);
  std::erase(streams, stream);
  stream->queue->close();
  stream->queue.reset();
  unused.push_back(stream);
  return kSuccess;
}
Result cuStreamSynchronize(StreamHandle handle) {
  FAKE_ON_STREAM(cuStreamSynchronize)
  if (stream->capture != nullptr) return invalidate(*stream->capture, kCaptureUnsupported);
  if (spoils_capture()) return kCaptureUnsupported;
  stream->queue->drain();
  return stream->context->fault.load();
}
Result cuStreamQuery(StreamHandle handle) {
  FAKE_ON_STREAM(cuStreamQuery)
  if (stream->capture != nullptr) return invalidate(*stream->capture, kCaptureUnsupported);
  if (spoils_capture()) return kCaptureUnsupported;
  return stream->queue->idle() ? stream->context->fault.load() : kNotReady;
}
Result cuStreamWaitEvent(StreamHandle handle, EventHandle event, unsigned flags) {
  FAKE_ON_STREAM(cuStreamWaitEvent)
  if (current().empty()) return kInvalidContext;
  CUgraph_st* const capture = stream->capture;
  if (flags == kEventExternal) {
    if (capture == nullptr) return kInvalidValue;
    if (event->capture != 0) return invalidate(*capture, kCaptureIsolation);
    add_node(*stream, [event = event->self] { return waiting(*event); });
    return kSuccess;
  }
  if (event->capture != 0) {
    CUgraph_st* const theirs = capture_of(event->capture);
    if (theirs == nullptr) {
      return capture == nullptr ? kCapturedEvent : invalidate(*capture, kCaptureIsolation);
    }
    if (stream->legacy) return invalidate(*theirs, kCaptureImplicit);
    if (capture != nullptr && capture != theirs) return invalidate(*capture, kCaptureIsolation);
    if (capture == nullptr) {  // the stream joins the capture
      stream->capture = theirs;
      theirs->streams.push_back(stream);
    }
    merge(stream->frontier, event->nodes);
    return kSuccess;
  }
  if (capture != nullptr) return invalidate(*capture, kCaptureIsolation);
  return submit(handle, waiting(*event));
}
Result cuStreamIsCapturing(StreamHandle stream, int* capturing) {
  return cuStreamGetCaptureInfo_v2(stream, capturing, nullptr, nullptr, nullptr, nullptr);
}
Result cuStreamGetCaptureInfo_v2(StreamHandle handle, int* capturing, unsigned long long* id,
                                 Graph*, const GraphNode**, std::size_t*) {
  FAKE_ON_STREAM(cuStreamGetCaptureInfo_v2)
  if (stream->legacy) {
    const std::lock_guard lock(mutex);
    for (const CUstream_st* other : streams) {
      if (other->capture != nullptr && other->context == stream->context) return kCaptureImplicit;
    }
  }
  const CUgraph_st* const capture = stream->capture;
  *capturing = capture == nullptr ? kCaptureNone : capture->invalid == kSuccess ? 1 : 2;
  if (id != nullptr && capture != nullptr) *id = capture->id;
  return kSuccess;
}
Result cuStreamBeginCapture_v2(StreamHandle handle, int mode) {
  FAKE_ON_STREAM(cuStreamBeginCapture_v2)
  static std::atomic<unsigned long long> captures_so_far{0};
  if (stream->legacy) return kCaptureUnsupported;
  if (stream->capture != nullptr) return kInvalidValue;
  auto* const capture = new CUgraph_st;
  capture->id = ++captures_so_far;
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams = {stream};
  stream->capture = capture;
  const std::lock_guard lock(captures_mutex);
  captures.emplace(capture->id, capture);
  return kSuccess;
}
Result cuStreamEndCapture(StreamHandle handle, Graph* graph) {
  FAKE_ON_STREAM(cuStreamEndCapture)
  return finish_capture(*stream, *graph);
}
Result cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKE(cuThreadExchangeStreamCaptureMode)
  *mode = exchange_capture_mode(*mode);
  return kSuccess;
}
Result cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return kSuccess;
}
Result cuGraphLaunch(GraphExec exec, StreamHandle stream) {
  return submit(stream, run_of(exec->nodes));
}
Result cuGraphDestroy(Graph graph) {
  delete graph;
  return kSuccess;
}
Result cuGraphExecDestroy(GraphExec exec) {
  delete exec;
  return kSuccess;
}

Result cuEventCreate(EventHandle* event, unsigned) {
  FAKE(cuEventCreate)
  if (const Result state = state_of_context(); state != kSuccess) return state;
  const auto made = std::make_shared<CUevent_st>();
  made->self = made;
  made->context = current().back();
  *event = made.get();
  return kSuccess;
}
Result cuEventDestroy_v2(EventHandle event) {
  FAKE(cuEventDestroy_v2)
  const std::shared_ptr<CUevent_st> last = std::move(event->self);
  return kSuccess;
}
Result cuEventRecord(EventHandle event, StreamHandle stream) {
  return cuEventRecordWithFlags(event, stream, 0);
}
Result cuEventRecordWithFlags(EventHandle event, StreamHandle handle, unsigned flags) {
  FAKE_ON_STREAM(cuEventRecordWithFlags)
  if (current().empty()) return kInvalidContext;
  if (event->context != stream->context) return kInvalidHandle;
  const bool capturing = stream->capture != nullptr;
  if (flags == kEventExternal) {
    if (!capturing) return kInvalidValue;
    event->capture = 0;
    add_node(*stream, [event = event->self] { return recording(*event); });
    return kSuccess;
  }
  event->capture = capturing ? stream->capture->id : 0;
  event->nodes = capturing ? stream->frontier : std::vector<std::size_t>();
  return capturing ? kSuccess : submit(handle, recording(*event));
}
Result cuEventQuery(EventHandle event) {
  FAKE(cuEventQuery)
  if (current().empty()) return kInvalidContext;
  if (event->capture != 0) return kCapturedEvent;
  if (spoils_capture()) return kCaptureUnsupported;
  const std::lock_guard lock(event->mutex);
  return event->completed >= event->recorded ? kSuccess : kNotReady;
}
Result cuEventSynchronize(EventHandle event) {
  FAKE(cuEventSynchronize)
  if (event->capture != 0) return kCapturedEvent;
  if (spoils_capture()) return kCaptureUnsupported;
  std::unique_lock lock(event->mutex);
  const std::uint64_t number = event->recorded;
  event->changed.wait(lock, [&] { return event->completed >= number; });
  return kSuccess;
}
Result cuEventElapsedTime(float* ms, EventHandle begin, EventHandle end) {
  const std::scoped_lock lock(begin->mutex, end->mutex);
  if (begin->completed < begin->recorded || end->completed < end->recorded) return kNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->completed_at - begin->completed_at).count();
  return kSuccess;
}

}  // extern "C"
