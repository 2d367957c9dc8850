"""The reliability and security tests: real servers in processes of their own, driven, damaged and watched from here."""
