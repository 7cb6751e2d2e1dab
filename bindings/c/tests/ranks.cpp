// A session whose ranks are processes of this program, through the C++ header: ranks PLAN.
#include <atomic>
#include <chrono>
#include <iostream>
#include <thread>

#include "of_runtime.hpp"

int main(int argc, char **argv) {
    try {
        if (of_runtime::serve_rank()) return 0;
        if (argc != 2) return 1;
        of_runtime::Plan plan(argv[1]);
        float x[24], y[24];
        for (int i = 0; i < 24; ++i) x[i] = static_cast<float>(i + 1);
        auto run = [&](of_runtime::Session &session) {
            session.set_input(0, x, {4, 6});
            session.set_output(0, y, 24);
            session.run();
            std::cout << "y " << y[0] << " " << y[23] << "\n";
        };
        of_runtime::Session session = of_runtime::Session::of_ranks(plan, 2);
        run(session);
        std::cout << "encrypted: ";
        of_rank_options encrypted{2, nullptr, 0, 0, 1};
        of_runtime::Session other = of_runtime::Session::of_ranks(plan, encrypted);
        run(other);
        // Another thread ends the runs, on both ranks.
        std::atomic<bool> runs{false};
        std::thread ends([&] {
            while (!runs) std::this_thread::yield();
            other.cancel();
        });
        try {
            for (;;) {
                other.run();
                runs = true;
            }
        } catch (const of_runtime::Error &error) {
            ends.join();
            if (error.status() != OF_CANCELLED) throw;
            std::cout << "cancelled after some runs: " << error.what() << "\n";
        }
    } catch (const std::exception &error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
