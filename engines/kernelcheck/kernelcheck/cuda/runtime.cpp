// Runs each thread of a CUDA kernel as a fiber, and looks at each access to memory, which the compiler reports through
// the hooks of -fsanitize=thread. Its one argument names the launch, written by kernel.py; what it found goes to stdout.
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <fcntl.h>
#include <ucontext.h>
#include <unistd.h>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

struct uint3 { unsigned x, y, z; };
extern "C" {
void kc_call(void** arguments);  // written by cuda.py behind the reader's text
void kc_describe();
char kc_dynamic[256 * 1024] __attribute__((aligned(4096)));
extern char __executable_start, end;
}

namespace {
typedef uint32_t u32;
typedef uintptr_t Address;
enum { READ, WRITE, ATOMIC, COPYING };
enum State { READY, BARRIER, WARP, DONE };

// Who touched a cell of memory last: a thread of the launch (0: nobody), how many barriers of its block and of its warp
// it had passed, where in the program, and after how many atomics and fences of all threads.
struct Stamp { u32 thread, epoch, warp_epoch, place, moment; };
struct Cell { Stamp writer, reader, other, copying; u32 atomic, fences; };  // copying: who began a copy to it that may still run
struct Later { char* to; char what[16]; int size; u32 place, batch; };  // a copy to shared memory that runs beside its thread
struct Entry { u32 used, more, what[6]; };  // what one warp touches at once: sectors, or words of shared memory
struct Array { char* base; int64_t lo, hi, item, size; Cell* cells; int64_t grain, loaded, stored, sectors, requests; };
struct Symbol { int64_t at, size; };
struct Fault {
  const char* kind; const char* space; int64_t array, at, size; int how, other_how; u32 place, other_place, other; int line, other_line;
  uint3 block, thread; std::string text; bool found;
};
struct Fiber {
  jmp_buf saved; ucontext_t start; char* stack; bool started; State state; uint3 id; u32 index, epoch, warp_epoch, work;
  int barrier, line, value, how; unsigned mask; uint64_t word; uint64_t given[32]; u32 last_place, last_access; Address last_read;
  bool fenced; u32 acquired, with, batch; std::vector<u32> released; std::vector<Later> copies;
};
struct Pending { char* at; int size; char old[16]; Fault fault; };  // two writes: a race, unless both write the same value
struct Touch { u32 thread; int array; int64_t element; int how; };

const Address START = Address(1) << 44, SPACING = Address(1) << 36;
const int64_t GUARD = 1 << 20, STACK = 256 << 10;
const size_t TOUCHES = 40000;
std::vector<Array> arrays; std::vector<Symbol> symbols; std::vector<Fiber> fibers; std::vector<Cell> shared_cells;
std::vector<Touch> touches; std::unordered_set<u32> guards; std::vector<Fault> reads_of_atomics, beyond; std::unordered_map<Address, Cell> device_cells; std::vector<u32> block_fences;
Fiber* now; jmp_buf scheduler; uint3 grid, block, at_block; u32 threads, warps, block_index, moment;
char *tls; int64_t tls_size, dynamic_size; Address program, program_end, code;
Fault first, uninitialised, undefined; std::vector<Pending> pending; bool ended; int variant;
int64_t barriers, shared_accesses, bank_conflicts, atomics, ticks;
std::string printed; FILE* out; std::vector<void*> values; alignas(16) char scalars[8192]; bool atomics_seen, aligned;

// ---- what one warp touches at once
struct Sites {
  u32 keys[4096]; u32 ids[4096]; u32 count;
  std::vector<std::vector<Entry>> entries; std::vector<u32> seen; std::vector<u32> used; std::vector<Entry> pool;
  u32 site(u32 place) {
    u32 h = (place * 2654435761u) >> 20;
    while (keys[h] && keys[h] != place) h = (h + 1) & 4095;
    if (!keys[h]) { keys[h] = place; ids[h] = count++ % 4000; entries.resize((count + 1) * warps); seen.resize((count + 1) * threads); }
    return ids[h];
  }
  Entry& entry(u32 place) {
    u32 s = site(place), which = s * warps + now->index / 32; auto& list = entries[which]; u32 turn = seen[s * threads + now->index]++;
    if (list.empty()) used.push_back(which);
    while (list.size() <= turn) list.push_back(Entry{});
    return list[turn];
  }
  void add(Entry* e, u32 what) {
    for (;;) {
      for (u32 i = 0; i < e->used && i < 6; i++) if (e->what[i] == what) return;
      if (e->used < 6) { e->what[e->used++] = what; return; }
      if (!e->more) { e->more = u32(pool.size() + 1); pool.push_back(Entry{1, 0, {what}}); return; }
      e = &pool[e->more - 1];
    }
  }
  template <class F> void close(F each) {
    std::vector<u32> all;
    for (u32 which : used) {
      for (Entry& e : entries[which]) if (e.used) {
        all.assign(e.what, e.what + e.used);
        for (u32 m = e.more; m; m = pool[m - 1].more) all.insert(all.end(), pool[m - 1].what, pool[m - 1].what + pool[m - 1].used);
        each(all);
      }
      entries[which].clear();
    }
    used.clear(); pool.clear(); std::fill(seen.begin(), seen.end(), 0);
  }
} global_sites, shared_sites;

// ---- faults
void report();
void finish() { report(); fflush(out); _exit(0); }

Fault fault(const char* kind, u32 place, int how) {
  Fault f{}; f.kind = kind; f.space = ""; f.array = -1; f.how = how; f.place = place; f.block = at_block; f.found = true;
  if (now) f.thread = now->id;
  return f;
}
void keep(const Fault& f) { if (!first.found) first = f; }
void stop(const Fault& f) { keep(f); finish(); }

u32 thread_of(u32 stamp) { return stamp - 1; }
bool ordered(const Stamp& s, bool shared, u32 fences) {
  if (!s.thread) return true;
  u32 id = thread_of(s.thread), me = block_index * threads + now->index;
  if (id == me) return true;
  if (id / threads != block_index) return shared || (atomics_seen && block_fences[id / threads] > fences);
  if (s.epoch < now->epoch) return true;
  if (id % threads / 32 == now->index / 32 && s.warp_epoch < now->warp_epoch) return true;
  // the other thread gave a lock free behind a fence, and this one has used an atomic since
  for (u32 released : fibers[id % threads].released) if (released > s.moment) return now->acquired > released;
  return false;
}

void settle() {
  for (auto& p : pending) if (memcmp(p.at, p.old, p.size)) keep(p.fault);
  pending.clear();
}

Fault race(const char* space, int64_t array, int64_t at, int size, int how, u32 place, const Stamp& with, int other_how) {
  Fault f = fault("race", place, how); f.space = space; f.array = array; f.at = at; f.size = size;
  f.other = with.thread; f.other_place = with.place; f.other_how = other_how; return f;
}

// One access to one cell: is it in order with those before it?
void look(Cell& c, const char* space, int64_t array, int64_t at, char* p, int size, int how, u32 place) {
  bool shared = space[0] == 's'; u32 me = block_index * threads + now->index + 1;
  if (c.copying.thread) return keep(race(space, array, at, size, how, place, c.copying, COPYING));
  if (how == COPYING) return;  // it is begun: what it writes is looked at when it arrives
  if (!ordered(c.writer, shared, c.fences) && !(how == ATOMIC && c.atomic)) {
    Fault f = race(space, array, at, size, how, place, c.writer, c.atomic ? ATOMIC : WRITE);
    if (how == WRITE && !c.atomic && size <= 16) { Pending w{p, size, {}, f}; memcpy(w.old, p, size); pending.push_back(w); }
    else if (how == READ && c.atomic) { if (reads_of_atomics.size() < 64) reads_of_atomics.push_back(f); }
    else keep(f);
  }
  Stamp mine{me, now->epoch, now->warp_epoch, place, moment};
  if (how != WRITE && shared && !uninitialised.found && (!c.writer.thread || thread_of(c.writer.thread) / threads != block_index)) {
    uninitialised = fault("uninitialised shared", place, how); uninitialised.space = space; uninitialised.array = array;
    uninitialised.at = at; uninitialised.size = size;
  }
  if (how == READ) {
    if (c.reader.thread != me && !ordered(c.reader, shared, 0)) c.other = c.reader;
    c.reader = mine;
    return;
  }
  const Stamp& r = !ordered(c.reader, shared, 0) ? c.reader : c.other;
  if (!ordered(r, shared, 0)) {
    Fault f = race(space, array, at, size, how, place, r, READ);
    if (how == ATOMIC) { if (reads_of_atomics.size() < 64) reads_of_atomics.push_back(f); }
    else if (size <= 16) { Pending w{p, size, {}, f}; memcpy(w.old, p, size); pending.push_back(w); }
    else keep(f);
  }
  // an atomic of the thread that has just written does not hide its write from the atomics of others
  if (how == ATOMIC && !c.atomic && c.writer.thread == me && c.writer.epoch == now->epoch && c.writer.warp_epoch == now->warp_epoch) return;
  c.writer = mine; c.atomic = how == ATOMIC; c.fences = block_fences[block_index];
}

void yield_to_scheduler() { if (!_setjmp(now->saved)) _longjmp(scheduler, 1); }
void wait(State s) { settle(); now->state = s; now->work = 0; yield_to_scheduler(); }

void global(int64_t k, char* p, int size, int how, u32 place) {
  Array& a = arrays[k]; int64_t at = p - a.base;
  if (touches.size() < TOUCHES) touches.push_back({block_index * threads + now->index, int(k), (at - a.lo) / a.item - ((at - a.lo) % a.item < 0), how});
  if (at < a.lo || at + size > a.hi) {
    Fault f = fault("out of bounds", place, how); f.space = "global"; f.array = k; f.at = at; f.size = size;
    if (at < -GUARD || at + size > a.size + GUARD) stop(f);
    keep(f);  // there is memory around each array: go on, so that a picture shows all of them
    return;
  }
  if (aligned && at % size) { Fault f = fault("misaligned", place, how); f.space = "global"; f.array = k; f.at = at; f.size = size; stop(f); }
  if (how != WRITE) a.loaded += size;
  if (how != READ) a.stored += size;
  atomics += how == ATOMIC;
  Entry& e = global_sites.entry(place);
  for (int64_t s = at >> 5; s <= (at + size - 1) >> 5; s++) global_sites.add(&e, u32(k << 27 | s));
  if (how == READ) { now->last_read = Address(p); now->last_place = place; }
  for (int64_t c = at / a.grain; c <= (at + size - 1) / a.grain; c++) look(a.cells[c], "global", k, c * a.grain, a.base + c * a.grain, a.grain < size ? int(a.grain) : size, how, place);
}

void shared(int64_t at, char* p, int size, int how, u32 place, int64_t symbol) {
  shared_accesses += how != COPYING; const char* space = symbol < 0 ? "shared dynamic" : "shared";
  int64_t local = symbol < 0 ? at - tls_size : symbol < int64_t(symbols.size()) ? at - symbols[symbol].at : at;
  if (aligned && local % size) { Fault f = fault("misaligned", place, how); f.space = space; f.array = symbol; f.at = local; f.size = size; stop(f); }
  if (how != COPYING) {
    Entry& e = shared_sites.entry(place);
    for (int64_t w = at / 4; w <= (at + size - 1) / 4; w++) shared_sites.add(&e, u32(w));
  }
  if (how == READ) { now->last_read = Address(p); now->last_place = place; }
  int step = size < 4 ? size : 4;
  for (int i = 0; i < size; i += step) {
    Cell& c = shared_cells[at + i]; Stamp before = c.writer; look(c, space, symbol, local + i, p + i, step, how, place);
    for (int j = 1; j < step && i + j < size; j++) {  // parts that were written by themselves, or that somebody may read by themselves
      Cell& part = shared_cells[at + i + j];
      if (memcmp(&part.writer, &before, sizeof before)) look(part, space, symbol, local + i + j, p + i + j, 1, how, place);
      if (how == WRITE || how == ATOMIC) { part.writer = c.writer; part.atomic = c.atomic; part.fences = c.fences; }
    }
  }
}

void outside_shared(const char* space, int64_t symbol, int64_t at, int size, int how, u32 place, bool go_on) {
  Fault f = fault("out of bounds", place, how); f.space = space; f.array = symbol; f.at = at; f.size = size;
  if (go_on) keep(f); else stop(f);
}

void shared_static(int64_t at, char* p, int size, int how, u32 place) {
  if (symbols.empty()) return shared(at, p, size, how, place, 0);
  int64_t near = 0, best = INT64_MAX;
  for (size_t i = 0; i < symbols.size(); i++) {
    if (symbols[i].size < 0) {  // a guard of the compiler's own
      if (at >= symbols[i].at && at < symbols[i].at - symbols[i].size) return;
      continue;
    }
    if (at >= symbols[i].at && at + size <= symbols[i].at + symbols[i].size) return shared(at, p, size, how, place, i);
    int64_t d = at < symbols[i].at ? symbols[i].at - at : at - (symbols[i].at + symbols[i].size) + 1;
    if (d < best) { best = d; near = i; }
  }
  outside_shared("shared", near, at - symbols[near].at, size, how, place, at >= 0 && at + size <= tls_size);
}

void access(void* address, int size, int how, void* from, bool typed = true) {
  if (!now) return;
  aligned = typed;
  char* p = (char*)address; Address a = Address(p); u32 place = u32(Address(from) - code);
  if (Address(p - now->stack) < Address(STACK) || a - Address(scalars) < sizeof scalars) return;  // its own local array, its arguments
  if (!pending.empty()) settle();
  now->last_access = place;
  if ((now->work += how == ATOMIC ? 1000 : 1) > 200000) { now->work = 0; yield_to_scheduler(); }  // so that who waits for another thread sees it come
  if (how == ATOMIC) {
    atomics_seen = true; now->acquired = ++moment;
    if (now->fenced) { now->released.push_back(moment); now->fenced = false; }
    if (now->last_read == a) guards.insert(now->last_place);  // a read that only prepares an atomic, as before atomicCAS
  }
  if (a - START < SPACING * arrays.size()) return global((a - START) / SPACING, p, size, how, place);
  if (a - Address(tls) < Address(tls_size)) return shared_static(p - tls, p, size, how, place);
  if (a - Address(kc_dynamic) < sizeof kc_dynamic) {
    int64_t at = p - kc_dynamic;
    if (at + size > dynamic_size) return outside_shared("shared dynamic", -1, at, size, how, place, true);
    return shared(tls_size + at, p, size, how, place, -1);
  }
  if (a >= program && a < program_end)  // a __device__ or __constant__ variable, a literal
    return look(device_cells[a], "device", -1, int64_t(a - code), p, size, how, place);
  if (!symbols.empty() && a + (1 << 20) - Address(tls) < Address(tls_size) + (2 << 20)) return shared_static(p - tls, p, size, how, place);
  Fault f = fault("wild pointer", place, how); f.at = int64_t(a); f.size = size;
  stop(f);
}

// ---- copies to shared memory that run beside their threads: the bytes arrive at the wait
void mark(const Later& copy, Stamp stamp) {
  for (int i = 0; i < copy.size; i++) {
    int64_t own = copy.to + i - tls, dynamic = copy.to + i - kc_dynamic;
    if (own >= 0 && own < tls_size) shared_cells[own].copying = stamp;
    else if (dynamic >= 0 && dynamic < dynamic_size) shared_cells[tls_size + dynamic].copying = stamp;
  }
}
void arrive(const Later& copy) {
  mark(copy, Stamp{});
  access(copy.to, copy.size, WRITE, (void*)(code + copy.place));
  memcpy(copy.to, copy.what, copy.size);
}

// ---- the scheduler
void body() {
  for (;;) {
    kc_call(values.data());
    settle(); now->state = DONE; yield_to_scheduler();
  }
}
void resume(Fiber& f) {
  if (_setjmp(scheduler)) return;
  now = &f;
  if (f.started) _longjmp(f.saved, 1);
  f.started = true; setcontext(&f.start);
}

// Threads of a warp that ask who is with them: those that ask at the same place, once no other thread can run.
bool release_active() {
  for (u32 w = 0; w < warps; w++) {
    Fiber* first = nullptr; unsigned with = 0;
    for (u32 i = w * 32; i < threads && i < w * 32 + 32; i++) {
      Fiber& f = fibers[i]; if (f.state != WARP || f.how != 3) continue;
      if (!first) first = &f;
      if (f.line == first->line) with |= 1u << (i & 31);
    }
    for (u32 i = 0; i < 32; i++) if (with >> i & 1) { Fiber& f = fibers[w * 32 + i]; f.state = READY; f.value = int(with); }
    if (with) return true;
  }
  return false;
}

bool release_warps() {
  bool any = false;
  for (u32 w = 0; w < warps; w++) {
    u32 lo = w * 32, n = threads - lo < 32 ? threads - lo : 32, alive = 0;
    for (u32 i = 0; i < n; i++) alive |= u32(fibers[lo + i].state != DONE) << i;
    for (u32 i = 0; i < n; i++) {
      Fiber& f = fibers[lo + i]; if (f.state != WARP || f.how == 3) continue;
      u32 need = f.mask & alive; bool all = true;
      for (u32 j = 0; j < n; j++) if (need >> j & 1) { Fiber& g = fibers[lo + j]; all &= g.state == WARP && g.mask == f.mask && g.how == f.how; }
      if (!all) continue;
      int how = f.how;
      for (u32 j = 0; j < n; j++) if (need >> j & 1) for (u32 k = 0; k < 32; k++) {  // what no thread gives is anything
        fibers[lo + j].given[k] = need >> k & 1 ? fibers[lo + k].word : variant ? ~fibers[lo + j].word : fibers[lo + j].word;
        fibers[lo + j].with = need;
      }
      for (u32 j = 0; j < n; j++) if (need >> j & 1) { Fiber& g = fibers[lo + j]; g.state = READY; g.warp_epoch += how == 1; }
      any = true;
    }
  }
  return any;
}

void release_barrier() {
  Fiber *waits = nullptr, *other = nullptr, *gone = nullptr, *stuck = nullptr; int sum = 0, count = 0;
  for (Fiber& f : fibers) {
    if (f.state == DONE) gone = gone ? gone : &f;
    else if (f.state == WARP) stuck = stuck ? stuck : &f;
    else { if (!waits) waits = &f; else if (f.barrier != waits->barrier && !other) other = &f; sum += f.value; count++; }
  }
  if (!waits && !stuck) return;
  if (stuck || other || gone) {
    now = stuck ? stuck : waits; Fault f = fault("divergent barrier", 0, READ); f.line = now->line;
    Fiber* w = stuck ? waits : other ? other : nullptr; f.space = stuck ? "warp" : "block";
    if (first.found && !strcmp(first.kind, "race") && !memcmp(&first.block, &at_block, sizeof at_block)) first.found = false;  // it follows from this
    f.text = stuck ? "warp" : other ? "other" : "ended"; if (!w) w = gone;
    if (w) { f.other = block_index * threads + w->index + 1; f.other_line = w->state == DONE ? 0 : w->line; }
    stop(f);
  }
  barriers++;
  for (Fiber& f : fibers) { f.state = READY; f.epoch++; f.warp_epoch++; f.value = waits->how ? sum == count : sum; }
}

void run_block() {
  atomics_seen = false;
  memset(tls, 0xff, tls_size); memset(kc_dynamic, 0xff, dynamic_size);  // shared memory starts with anything
  for (u32 i = 0; i < threads; i++) {
    Fiber& f = fibers[i]; f.state = READY; f.epoch = f.warp_epoch = f.work = f.acquired = 0; f.last_read = 0; f.fenced = false; f.released.clear();
    for (auto& copy : f.copies) mark(copy, Stamp{});  // for which nobody waited
    f.copies.clear(); f.batch = 0;
  }
  for (;;) {
    u32 done = 0; bool ready = false;
    for (Fiber& f : fibers) { if (f.state == READY) resume(f); now = nullptr; ready |= f.state == READY; done += f.state == DONE; }
    if (done == threads) break;
    if (!ready && !release_warps() && !release_active()) release_barrier();
  }
  global_sites.close([](std::vector<u32>& all) { arrays[all[0] >> 27].requests++; for (u32 s : all) arrays[s >> 27].sectors++; });
  shared_sites.close([](std::vector<u32>& all) {
    u32 banks[32] = {}, most = 0;
    for (u32 w : all) { u32 n = ++banks[w & 31]; most = n > most ? n : most; }
    bank_conflicts += most - (all.size() + 31) / 32; });
}

// ---- what ends a kernel from outside
void on_signal(int number, siginfo_t* info, void* context) {
  if (ended) _exit(3);
  u32 place = 0;
#if defined(__x86_64__)
  place = u32(((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP] - code) + 1;
#elif defined(__aarch64__)
  place = u32(((ucontext_t*)context)->uc_mcontext.pc - code) + 1;
#endif
  Address a = Address(info->si_addr); const char* kind = "wild pointer";
  if (number == SIGPROF) kind = "endless";
  else if (number == SIGFPE) kind = "division by zero";
  else if (number == SIGABRT) kind = "abort";
  else if (number == SIGILL || number == SIGTRAP) kind = "trap";
  else if (now && a < Address(now->stack) + 8192 && a + (64 << 20) > Address(now->stack)) kind = "stack";
  Fault f = fault(kind, place, READ); f.at = int64_t(a);
  f.other_place = now ? now->last_access : 0;  // where it is not in the reader's text: the access before
  stop(f);
}

void print(const char* name, const Fault& f) {
  if (!f.found) { fprintf(out, "\"%s\": null, ", name); return; }
  fprintf(out, "\"%s\": {\"kind\": \"%s\", \"space\": \"%s\", \"array\": %ld, \"at\": %ld, \"size\": %ld, \"how\": %d, \"other_how\": %d, "
    "\"place\": %u, \"other_place\": %u, \"other\": %d, \"line\": %d, \"other_line\": %d, \"block\": [%u, %u, %u], \"thread\": [%u, %u, %u], \"text\": \"",
    name, f.kind, f.space, long(f.array), long(f.at), long(f.size), f.how, f.other_how, f.place, f.other_place, int(f.other) - 1, f.line, f.other_line,
    f.block.x, f.block.y, f.block.z, f.thread.x, f.thread.y, f.thread.z);
  for (unsigned char c : f.text) c < 32 || c == '"' || c == '\\' || c > 126 ? fprintf(out, "\\u%04x", c) : fputc(c, out);
  fprintf(out, "\"}, ");
}

void report() {
  ended = true;
  for (auto& f : reads_of_atomics) if (!guards.count(f.how == READ ? f.place : f.other_place)) { keep(f); break; }
  // what was read too early is part of a race or of a barrier that not all reach; else it comes first
  bool part = first.found && (!strcmp(first.kind, "divergent barrier") || (!strcmp(first.kind, "race") && first.space[0] == 's'));
  bool before = first.found && (!strcmp(first.kind, "out of bounds") || !strcmp(first.kind, "misaligned"));
  fprintf(out, "{"); print("undefined", undefined); print("fault", uninitialised.found && !part && !before ? uninitialised : first);
  for (size_t i = 0; i < 8; i++) print(("beyond" + std::to_string(i)).c_str(), i < beyond.size() ? beyond[i] : Fault{});
  fprintf(out, "\"counts\": [%ld, %ld, %ld, %ld], \"arrays\": [", long(barriers), long(shared_accesses), long(bank_conflicts), long(atomics));
  for (size_t k = 0; k < arrays.size(); k++) {
    Array& a = arrays[k]; int64_t missing = 0;
    if (a.stored) for (int64_t c = a.lo / a.grain; c < a.hi / a.grain; c++) missing += !a.cells[c].writer.thread;
    fprintf(out, "%s[%ld, %ld, %ld, %ld, %ld]", k ? ", " : "", long(a.loaded), long(a.stored), long(a.sectors), long(a.requests), long(missing));
  }
  fprintf(out, "], \"touched\": [");
  if (touches.size() < TOUCHES) for (size_t i = 0; i < touches.size(); i++) fprintf(out, "%s%d,%u,%ld,%d", i ? "," : "", touches[i].array, touches[i].thread, long(touches[i].element), touches[i].how);
  fprintf(out, "], \"printed\": \"");
  for (unsigned char c : printed) c < 32 || c == '"' || c == '\\' || c > 126 ? fprintf(out, "\\u%04x", c) : fputc(c, out);
  fprintf(out, "\"}\n");
}

void left() { if (!ended) { stop(fault("exit", 0, READ)); } }
}  // namespace

extern "C" {
uint3 kc_thread() { return now->id; }
uint3 kc_block() { return at_block; }
uint3 kc_block_dim() { return block; }
uint3 kc_grid_dim() { return grid; }
int kc_space(const void* p) {  // 0 local, 1 shared, 2 global
  Address a = Address(p);
  return a - START < SPACING * arrays.size() || (a >= program && a < program_end && a - Address(kc_dynamic) >= sizeof kc_dynamic) ? 2 :
    a - Address(tls) < Address(tls_size) || a - Address(kc_dynamic) < sizeof kc_dynamic;
}
size_t kc_shared_offset(const void* p) { Address a = Address(p); return a - Address(tls) < Address(tls_size) ? a - Address(tls) : tls_size + a - Address(kc_dynamic); }
unsigned kc_lane() { return now->index % 32; }
unsigned kc_active(int line) { now->how = 3; now->mask = 0; now->line = line; wait(WARP); return now->value; }
long long kc_clock() { return ticks += 4; }
void kc_atomic(void* p, int size) { access(p, size, ATOMIC, __builtin_return_address(0)); }
void kc_copy(void* to, const void* from, int size) {
  access((void*)from, size, READ, __builtin_return_address(0)); access(to, size, WRITE, __builtin_return_address(0)); memmove(to, from, size);
}
void kc_move(void* to, const void* from, long size) {
  access((void*)from, int(size), READ, __builtin_return_address(0), false); access(to, int(size), WRITE, __builtin_return_address(0), false); memmove(to, from, size);
}
void kc_copy_later(void* to, const void* from, int size, int zeros, int line) {
  void* here = __builtin_return_address(0);
  if (Address(to) - START < SPACING * arrays.size()) {
    Fault f = fault("assert", 0, READ); f.text = "dst_shared points into shared memory"; f.line = line; stop(f);
  }
  access(to, size, COPYING, here);
  if (zeros < size) access((void*)from, size - zeros, READ, here, !zeros);
  Later copy{(char*)to, {}, size, u32(Address(here) - code), now->batch}; memcpy(copy.what, from, size - zeros);
  mark(copy, Stamp{block_index * threads + now->index + 1, now->epoch, now->warp_epoch, copy.place, moment}); now->copies.push_back(copy);
}
void kc_commit() { now->batch++; }
void kc_wait_prior(size_t batches) {  // the newest `batches` that were committed may go on, and what is not committed
  auto& all = now->copies; size_t n = 0;
  while (n < all.size() && all[n].batch + batches < now->batch) arrive(all[n++]);
  all.erase(all.begin(), all.begin() + n);
}
void kc_set(void* to, int value, long size) { access(to, int(size), WRITE, __builtin_return_address(0), false); memset(to, value, size); }
void kc_fence() {
  now->fenced = true; moment++;
  block_fences[block_index]++;  // what this block wrote so far is seen by a block that looks behind an atomic
  settle(); yield_to_scheduler();
}
int kc_barrier(int place, int line, int value, int how) {
  now->barrier = place; now->line = line; now->value = value; now->how = how; wait(BARRIER); return now->value;
}
const uint64_t* kc_warp(unsigned mask, uint64_t value, int how, int line) {
  now->mask = mask; now->word = value; now->how = how; now->line = line;
  if (!(mask >> now->index % 32 & 1)) { Fault f = fault("divergent barrier", 0, READ); f.line = line; f.space = "warp"; f.text = "mask"; stop(f); }
  wait(WARP); return now->given;
}
void kc_takes(int lane, int line) {
  if (now->with >> (lane & 31) & 1 || undefined.found) return;
  undefined = fault("undefined", 0, READ); undefined.line = line; undefined.at = lane; undefined.space = "warp";
}
int kc_printf(const char* form, ...) {
  char text[1024]; va_list list; va_start(list, form); int n = vsnprintf(text, sizeof text, form, list); va_end(list);
  if (printed.size() < 20000) printed += text;
  return n;
}
void kc_stop(const char* kind, const char* text, int line) { Fault f = fault(kind, 0, READ); f.text = text; f.line = line; stop(f); _exit(0); }

// An index beyond its array of known size, at the reader's line and column. Shared arrays are looked at by their accesses.
struct Type { uint16_t kind, info; char name[1]; };
struct Beyond { const char* file; u32 line, column; Type *array, *index; };
void __ubsan_handle_out_of_bounds(Beyond* b, uintptr_t index) {
  for (auto& f : beyond) if (f.line == int(b->line)) return;
  int free_bits = 64 - (1 << (b->index->info >> 1));
  Fault f = fault("out of bounds", 0, READ); f.space = "local"; f.line = int(b->line); f.other_line = int(b->column); f.text = b->array->name;
  f.at = b->index->info & 1 ? int64_t(index << free_bits) >> free_bits : int64_t(index);
  if (beyond.size() < 8) beyond.push_back(f);
}

// The end of a function that returns a value, at the function's line.
struct Ended { const char* file; u32 line, column; };
void __ubsan_handle_missing_return(Ended* e) { kc_stop("undefined", "return", int(e->line)); }

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define HERE __builtin_return_address(0)
#define HOOKS(n) \
  void __tsan_read##n(void* p) { access(p, n, READ, HERE); } \
  void __tsan_write##n(void* p) { access(p, n, WRITE, HERE); } \
  void __tsan_unaligned_read##n(void* p) { access(p, n, READ, HERE, false); } \
  void __tsan_unaligned_write##n(void* p) { access(p, n, WRITE, HERE, false); } \
  void __tsan_volatile_read##n(void* p) { access(p, n, READ, HERE); } \
  void __tsan_volatile_write##n(void* p) { access(p, n, WRITE, HERE); } \
  void __tsan_read_write##n(void* p) { access(p, n, READ, HERE); access(p, n, WRITE, HERE); } \
  void __tsan_unaligned_read_write##n(void* p) { access(p, n, READ, HERE, false); access(p, n, WRITE, HERE, false); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, long n) { access(p, int(n), READ, HERE, false); }
void __tsan_write_range(void* p, long n) { access(p, int(n), WRITE, HERE, false); }
void* __tsan_memcpy(void* to, const void* from, size_t n) { access((void*)from, int(n), READ, HERE, false); access(to, int(n), WRITE, HERE, false); return memcpy(to, from, n); }
void* __tsan_memmove(void* to, const void* from, size_t n) { access((void*)from, int(n), READ, HERE, false); access(to, int(n), WRITE, HERE, false); return memmove(to, from, n); }
void* __tsan_memset(void* to, int v, size_t n) { access(to, int(n), WRITE, HERE, false); return memset(to, v, n); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}

static int found(dl_phdr_info* info, size_t, void*) {  // the first object is the program itself
  code = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; i++) if (info->dlpi_phdr[i].p_type == PT_TLS) { tls = (char*)info->dlpi_tls_data; tls_size = info->dlpi_phdr[i].p_memsz; }
  return 1;
}

// The launch, as text: grid, block, bytes of dynamic shared memory, seconds; arrays, arguments, shared variables.
int main(int count, char** words) {
  dl_iterate_phdr(found, nullptr); program = Address(&__executable_start); program_end = Address(&end);
  if (count < 3) { kc_describe(); return 0; }
  FILE* in = fopen(words[1], "r"); int data = open(words[2], O_RDWR); double seconds; long n, item, offset, bytes, lo, hi, k;
  out = fdopen(dup(1), "w"); int none = open("/dev/null", O_RDWR); dup2(none, 0); dup2(none, 1); dup2(none, 2);
  if (!in || fscanf(in, "%u %u %u %u %u %u %ld %lf %d", &grid.x, &grid.y, &grid.z, &block.x, &block.y, &block.z, &dynamic_size, &seconds, &variant) != 9) return 2;
  threads = block.x * block.y * block.z; warps = (threads + 31) / 32;
  for (fscanf(in, "%ld", &n); n-- > 0;) {
    if (fscanf(in, "%ld %ld %ld %ld %ld", &offset, &bytes, &lo, &hi, &item) != 5) return 2;
    Array a{}; a.base = (char*)(START + SPACING * arrays.size() + SPACING / 2); a.lo = lo; a.hi = hi; a.item = item; a.size = bytes; a.grain = item;
    int flags = MAP_FIXED | MAP_NORESERVE; long pages = (bytes + 4095) / 4096 * 4096;
    char* around = (char*)mmap(a.base - GUARD, pages + 2 * GUARD, PROT_READ | PROT_WRITE, flags | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (around == MAP_FAILED || (bytes && mmap(a.base, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, data, offset) == MAP_FAILED)) return 4;
    a.cells = (Cell*)mmap(nullptr, (bytes / a.grain + 2) * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    arrays.push_back(a);
  }
  char* free_place = scalars;
  for (fscanf(in, "%ld", &n); n-- > 0;) {  // an argument: its array and offset, or -1 and its bytes, as words of 8
    if (fscanf(in, "%ld %ld", &k, &bytes) != 2 || free_place + 8 * bytes + 16 > scalars + sizeof scalars) return 2;
    values.push_back(free_place);
    for (long i = 0; i < bytes; i++) {
      unsigned long long value; if (fscanf(in, "%llx", &value) != 1) return 2;
      if (k >= 0) value += (unsigned long long)arrays[k].base;
      memcpy(free_place + 8 * i, &value, 8);
    }
    free_place += (8 * bytes + 15) / 16 * 16;
  }
  for (fscanf(in, "%ld", &n); n-- > 0;) { fscanf(in, "%ld %ld", &lo, &hi); symbols.push_back({lo, hi}); }
  shared_cells.resize(tls_size + sizeof kc_dynamic + 16);
  fibers.resize(threads); char* stacks = (char*)mmap(nullptr, threads * (STACK + 8192), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (u32 i = 0; i < threads; i++) {
    Fiber& f = fibers[i]; f.index = i; f.id = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    mprotect(stacks + i * (STACK + 8192), 8192, PROT_NONE); f.stack = stacks + i * (STACK + 8192) + 8192;
    getcontext(&f.start); f.start.uc_stack.ss_sp = f.stack; f.start.uc_stack.ss_size = STACK; f.start.uc_link = nullptr; makecontext(&f.start, body, 0);
  }
  static char spare[65536]; stack_t alternative{}; alternative.ss_sp = spare; alternative.ss_size = sizeof spare; sigaltstack(&alternative, nullptr);
  struct sigaction action{}; action.sa_sigaction = on_signal; action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) sigaction(s, &action, nullptr);
  long micro = long(seconds * 1e6); itimerval timer{{0, 0}, {micro / 1000000, micro % 1000000}}; setitimer(ITIMER_PROF, &timer, nullptr);
  atexit(left); block_fences.resize(size_t(grid.x) * grid.y * grid.z);
  for (u32 z = 0; z < grid.z; z++) for (u32 y = 0; y < grid.y; y++) for (u32 x = 0; x < grid.x; x++) { at_block = {x, y, z}; run_block(); block_index++; }
  finish();
}
