import java.util.HashMap;

/** A map of small arrays: built, an eighth of it looked up at random and changed, then added up. Argument: memory in MiB. */
class Objects {
    public static void main(String[] arguments) {
        int n = Integer.parseInt(arguments[0]) * 6000;
        HashMap<Integer, long[]> table = new HashMap<>(2 * n);
        for (int i = 0; i < n; i++) table.put(i, new long[] {i, 7L * i, 0});
        long at = 1;
        for (int i = 0; i < n / 8; i++) {
            at = (at * 1103515245L + 12345) % n;
            long[] entry = table.get((int) at);
            if (entry[0] != at || entry[1] != 7 * at) throw new IllegalStateException("entry " + at);
            entry[2]++;
        }
        long sum = 0;
        for (long[] entry : table.values()) sum += entry[2];
        System.out.println("answer " + sum + " " + (sum == n / 8));
    }
}
